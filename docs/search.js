// Guides, tasks and the reference first; what developers decided and measured last.
var Scorer = {
  score: ([page, , , , score]) => score - (/^decisions\//.test(page) ? 200 : /^(math|benchmarks|design)$/.test(page) ? 100 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
