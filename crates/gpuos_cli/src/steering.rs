//! How often select/gpuos could choose and how often its choices were taken, by the counters of its recording: in
//! words, as JSON, and as metrics.

use gpuos_placement::record::Tally;
use serde_json::{Value, json};

/// The counters with their names as metrics and what they count.
fn counters(tally: &Tally) -> [(&'static str, u64, &'static str); 8] {
    [
        (
            "calls",
            tally.calls,
            "Calls of slurmctld about a job with GPUs that select/gpuos looked into",
        ),
        (
            "placed",
            tally.placed,
            "Jobs that got the place which gpuos chose",
        ),
        (
            "only_way",
            tally.only_way,
            "Jobs for which there was only one place",
        ),
        (
            "left",
            tally.left,
            "Jobs that cons_tres placed after it had refused what gpuos offered, or gpuos had nothing to offer",
        ),
        (
            "unplanned",
            tally.unplanned,
            "Jobs of forms that gpuos leaves to Slurm, or with --gpuos=off",
        ),
        ("offers", tally.offers, "Choices offered to cons_tres"),
        ("refused", tally.refused, "Choices that cons_tres refused"),
        (
            "spared",
            tally.spared,
            "Times that nodes were left out for what a refusal had taught",
        ),
    ]
}

/// One sentence, or what there is to say before the first job.
pub fn sentence(tally: &Tally) -> String {
    let Some(share) = tally.steered_percent() else {
        return "no job with GPUs has had a choice of places yet".into();
    };
    format!(
        "gpuos placed {} of {} jobs that had a choice of places ({share:.1} %); Slurm refused {} of {} offers \
         ({:.2} in 100 calls)",
        tally.placed,
        tally.placed + tally.left,
        tally.refused,
        tally.offers,
        tally.refused_percent().unwrap_or(0.0)
    )
}

/// The counters as JSON.
pub fn figures(tally: &Tally) -> Value {
    let all = counters(tally).into_iter();
    let mut object: serde_json::Map<String, Value> = all
        .map(|(name, value, _)| (name.into(), json!(value)))
        .collect();
    object.insert("steered_percent".into(), json!(tally.steered_percent()));
    object.insert("refused_percent".into(), json!(tally.refused_percent()));
    Value::Object(object)
}

/// The counters as Prometheus reads them.
pub fn metrics(tally: &Tally) -> String {
    let mut text = String::new();
    for (name, value, what) in counters(tally) {
        let name = format!("gpuos_steering_{name}_total");
        text += &format!("# HELP {name} {what}\n# TYPE {name} counter\n{name} {value}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_metrics_of_the_counters() {
        assert!(sentence(&Tally::default()).starts_with("no job"));
        let tally = Tally {
            calls: 400,
            placed: 396,
            left: 4,
            offers: 412,
            refused: 16,
            ..Tally::default()
        };
        assert_eq!(
            sentence(&tally),
            "gpuos placed 396 of 400 jobs that had a choice of places (99.0 %); Slurm refused 16 of 412 offers \
             (4.00 in 100 calls)"
        );
        let text = metrics(&tally);
        assert!(
            text.contains("\ngpuos_steering_placed_total 396\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 24);
        assert_eq!(figures(&tally)["steered_percent"], json!(99.0));
    }
}
