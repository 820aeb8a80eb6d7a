/* Scores of the search: the defaults of Sphinx, but a page with the words as its title or its name in the sidebar comes
   first, and records last. An entry of the index that equals the words has a score of 100. */
const plain = (text) => text.trim().toLowerCase().replace(/\?$/, "");
const sought = plain(new URLSearchParams(location.search).get("q") || "");
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const names = [plain(title), plain(title.split(":")[0])];
    const isNamed = names.includes(sought) || names.includes(`${sought}s`) || score === 100;
    if (!anchor && isNamed) return score + 200;
    if (/benchmarks|CHANGELOG|CONTRIBUTING|paper|results|experiments/.test(page)) return score - 100;
    return /how_to|pretrained|citing/.test(page) ? score - 4 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
