/* Scores of the search: the defaults of Sphinx, but pages of records come after pages that explain. */
var Scorer = {
  score: ([page, , , , score]) => (/benchmarks|CHANGELOG|paper|results|experiments/.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
