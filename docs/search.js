/* Scores of the search: the defaults of Sphinx, but first pages come before others, and records last. */
var Scorer = {
  score: ([page, , , , score]) => {
    if (/benchmarks|CHANGELOG|CONTRIBUTING|paper|results|experiments/.test(page)) return score - 100;
    if (/getting_started|command_line|faq/.test(page)) return score + 4;
    return /how_to|pretrained/.test(page) ? score - 4 : score;
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
