/* Scores of the search: the defaults of Sphinx, but a page with the words as its title comes first, and records last. */
const sought = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    if (/benchmarks|CHANGELOG|CONTRIBUTING|paper|results|experiments/.test(page)) return score - 100;
    const name = title.toLowerCase().split(":")[0];
    if (!anchor && (name === sought || name === `${sought}s`)) return score + 200;
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
