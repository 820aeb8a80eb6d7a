/* Scores of the search: Sphinx's, but pages with the words as title, sidebar name or index entry (100) come first, then sections with the words. */
const plain = (text) => text.trim().toLowerCase().replace(/\?$/, "");
const sought = plain(new URLSearchParams(location.search).get("q") || "");
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const names = [plain(title), plain(title.split(":")[0])];
    if (!anchor && (names.includes(sought) || names.includes(`${sought}s`) || score === 100)) return score + 200;
    if (` ${plain(title.split(" > ")[1] || "")} `.includes(` ${sought} `)) return score + 100;
    if (/benchmarks|CHANGELOG|CONTRIBUTING|paper|results|experiments/.test(page)) return score - 100;
    return /how_to|pretrained|citing/.test(page) ? score - 4 : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
