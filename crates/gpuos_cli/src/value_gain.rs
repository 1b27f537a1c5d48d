//! What places are worth to a job, for `plan`: by type, with the parts of each score.

use gpuos_host::slurm::site::Site;
use gpuos_model::cluster::NodeType;
use gpuos_placement::cost::{Condition, OBJECTIVES, Score, Scoring};
use gpuos_placement::explain::{ValueGain, value_sentence};
use gpuos_placement::plan::{Choice, NodeState, Planner, Request};
use serde_json::{Value, json};

use crate::table::Table;

/// The scores of one job's candidates.
pub struct Worths<'a> {
    wish: Scoring,
    rows: Vec<Row<'a>>,
    more: Option<ValueGain>,
}

/// The candidates of one type and condition.
struct Row<'a> {
    node_type: &'a NodeType,
    condition: Condition,
    /// Names of its nodes with a free GPU.
    nodes: Vec<&'a str>,
    /// Whether the choice has one of them.
    chosen: bool,
    score: Score,
}

impl<'a> Worths<'a> {
    /// Scores the candidates that have a free GPU; the best come first.
    pub fn of(
        planner: &mut Planner,
        site: &'a Site,
        wish: Scoring,
        (request, states): (&Request, &[NodeState]),
        choice: &Choice,
    ) -> Worths<'a> {
        let conditions = site.config.conditions(&site.cluster);
        let mut rows: Vec<Row> = Vec::new();
        for (at, (node, state)) in site.cluster.nodes.iter().zip(states).enumerate() {
            let condition = conditions.get(at).copied().unwrap_or_default();
            let Some(node_type) = &node.node_type else {
                continue;
            };
            if !state.candidate || state.free.is_empty() {
                continue;
            }
            let chosen = choice.nodes.iter().any(|one| one.node as usize == at);
            let same = |row: &&mut Row| row.node_type == &**node_type && row.condition == condition;
            if let Some(row) = rows.iter_mut().find(same) {
                row.nodes.push(&node.name);
                row.chosen |= chosen;
            } else if let Some(score) = planner.score(at as u32, condition, &wish, request) {
                rows.push(Row {
                    node_type,
                    condition,
                    nodes: vec![&node.name],
                    chosen,
                    score,
                });
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.score.total));
        let beside = planner.beside(choice, &wish, &conditions, request, states);
        let more = beside.map(|(than, percent)| ValueGain {
            objectives: wish.objectives,
            percent,
            than: site.cluster.nodes[than as usize].name.clone(),
        });
        Worths { wish, rows, more }
    }

    /// The reason in a sentence, where there is one, and the table.
    pub fn text(&self, site: &Site) -> String {
        let mut headings = vec!["TYPE".to_string(), "NODES".into(), "SCORE".into()];
        let weighed = || {
            OBJECTIVES
                .iter()
                .filter(|(_, of)| self.wish.objectives.weight(*of) > 0)
        };
        headings.extend(weighed().map(|(word, _)| format!("{} %", word.to_uppercase())));
        headings.extend(["W/GPU", "PRICE/GPU-HOUR", ""].map(String::from));
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let mut table = Table::new(&headings);
        for row in &self.rows {
            let [watts, price] = row
                .takes()
                .map(|figure| figure.unwrap_or_else(|| "?".into()));
            let mut cells = vec![
                row.node_type.name.clone(),
                gpuos_model::hostlist::compress(row.nodes.iter().copied()),
                hundredths(row.score.total / 10),
            ];
            let value = |of| row.score.parts[of as usize].value;
            cells.extend(weighed().map(|(_, of)| tenths(value(*of))));
            cells.extend([watts, price]);
            cells.push(if row.chosen { "chosen" } else { "" }.into());
            table.row(cells);
        }
        let more = self
            .more
            .as_ref()
            .map(|more| value_sentence(more, &site.cluster) + "\n");
        format!(
            "\nWhat the nodes are worth to it, by {}, in percent of the best:\n\n{}{}",
            self.wish.objectives,
            table.render(),
            more.unwrap_or_default()
        )
    }

    /// The same for programs: values in thousandths, the score up to 100,000.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let parts: serde_json::Map<_, _> = OBJECTIVES
                .iter()
                .zip(row.score.parts)
                .map(|((word, _), part)| ((*word).into(), part.value.into()))
                .collect();
            let [watts, price] = row.takes();
            json!({
                "type": row.node_type.name,
                "nodes": row.nodes,
                "chosen": row.chosen,
                "score": row.score.total,
                "parts": parts,
                "watts_per_gpu": watts.and_then(|w| w.parse::<u32>().ok()),
                "price_per_gpu_hour": price.and_then(|p| p.parse::<f64>().ok()),
            })
        });
        json!({
            "objectives": self.wish.objectives.to_string(),
            "types": rows.collect::<Vec<_>>(),
            "more_percent": self.more.as_ref().map(|more| more.percent),
            "than": self.more.as_ref().map(|more| &more.than),
        })
    }
}

impl Row<'_> {
    /// W of a GPU with its share of the node, and price of a GPU and hour, where known.
    fn takes(&self) -> [Option<String>; 2] {
        let figures = &self.node_type.figures;
        let spared = figures.gpu_watts - self.condition.gpu_watts(figures);
        let watts = figures.watts(1, self.node_type.gpus as u32);
        let price = figures.price_milli;
        [
            (watts > 0).then(|| (watts - spared).to_string()),
            (price > 0).then(|| format!("{}.{:03}", price / 1000, price % 1000)),
        ]
    }
}

fn tenths(value: u32) -> String {
    format!("{}.{}", value / 10, value % 10)
}

fn hundredths(value: u32) -> String {
    format!("{}.{:02}", value / 100, value % 100)
}
