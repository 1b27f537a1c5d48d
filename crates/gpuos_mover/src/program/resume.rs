//! With which epoch a leader begins that has others before it in the same run of the job.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::NodeIndex;

use super::epoch::{Base, Epoch, Together};
use super::start::Join;
use super::types::{Answered, Told};
use super::word::Report;

/// The last epoch in which anything was answered, with its ranks that are there still, and the joins that nobody has answered. `base`: the
/// newest checkpoint. `refused`: numbers of checkpoints that a program could not load.
pub(super) fn resumed(
    reports: &[(NodeIndex, &Report)],
    base: Base,
    refused: &BTreeSet<u32>,
    now: u64,
) -> (Epoch, Vec<(NodeIndex, Join)>) {
    let last = reports.iter().map(|(_, report)| report.known.epoch).max();
    let last = last.unwrap_or(0);
    // Who was told to end has nothing to save.
    let runs = |it: &&Answered| it.epoch == last && it.told != Told::Failed;
    let answered = reports
        .iter()
        .flat_map(|(_, report)| &report.known.answered);
    let told: BTreeSet<Told> = answered.filter(runs).map(|it| it.told).collect();
    let mut epoch = match told.first() {
        None => Epoch::new(last.saturating_add(1)),
        // Two starting points in one epoch: no checkpoint comes of that.
        Some(_) if told.len() > 1 => Epoch::past(last, false),
        // What they were given is not to be saved.
        Some(Told::Restore(number)) if refused.contains(number) => Epoch::past(last, false),
        Some(told) if *told == base.told() => Epoch::resumed(last, base),
        Some(_) => Epoch::past(last, true),
    };
    let mut unanswered = Vec::new();
    let mut given = None;
    for (node, report) in reports {
        let joins: BTreeSet<Join> = report.joins.iter().copied().collect();
        let answered = &report.known.answered;
        for it in answered
            .iter()
            .filter(runs)
            .filter(|it| joins.contains(&it.join))
        {
            epoch.count_in(it.join, *node, now);
        }
        // Who was given it and has not joined again may be of the same start as those that have no answer yet.
        let present = answered.iter().filter(|it| joins.contains(&it.join));
        let numbers = present.filter_map(|it| match it.told {
            Told::Restore(number) => Some(number).filter(|number| refused.contains(number)),
            Told::New | Told::Failed => None,
        });
        given = given.max(numbers.max());
        let answered: BTreeSet<Join> = answered.iter().map(|it| it.join).collect();
        unanswered.extend(joins.difference(&answered).map(|join| (*node, *join)));
    }
    epoch.together = given.map(Together::after).or(epoch.together);
    (epoch, unanswered)
}
