//! Whether a job has come through what ended beneath it: judged by what its ranks have written alone, and by the numbers of the checkpoints that nodes knew of.

use std::time::Duration;

use gpuos_tests::counted::{self, Said, Saved, Start};

use super::programs::Program;
use super::victims::Victim;

/// What was known in the moment in which something ended.
pub(crate) struct Moment {
    /// How long after all jobs had made a checkpoint.
    pub(crate) after: Duration,
    /// The newest committed one.
    pub(crate) committed: Option<u32>,
    pub(crate) starts: Vec<Start>,
}

/// Whether the program was started again since, and has saved itself.
pub(crate) fn is_running_again(before: &[Start], starts: &[Start]) -> bool {
    let again = starts.get(before.len()..).unwrap_or_default().last();
    let first = again.and_then(|start| start.get(&0));
    first.is_some_and(|said| !said.saved.is_empty())
}

/// Whether the job as a whole has ended as an undisturbed one.
pub(crate) fn whole(
    program: &Program,
    limit: u64,
    state: &str,
    starts: &[Start],
) -> Result<(), String> {
    if state != "COMPLETED" {
        return Err(format!("the job is {state}"));
    }
    counted::check(starts, program.ranks, limit)?;
    if let (Some(result), Some(last)) = (program.results.get(&limit), starts.last()) {
        let other = last.iter().find(|(_, said)| !said.other.contains(result));
        if let Some((rank, said)) = other {
            let said = &said.other;
            return Err(format!("rank {rank} has not ended with {result}: {said:?}"));
        }
    }
    Ok(())
}

/// Whether the program went on from the checkpoint that it had to go on from; `newest`: the newest one that was committed before the next moment.
pub(crate) fn moment(
    moment: &Moment,
    starts: &[Start],
    newest: Option<u32>,
    victim: Victim,
) -> Result<(), String> {
    let Some(committed) = moment.committed else {
        return Err(
            "no checkpoint was made before anything ended: the job's standard error may say why"
                .into(),
        );
    };
    let later = later(starts, &moment.starts);
    if victim.ends_programs() && later.is_none() {
        return Err("the program was not started again".into());
    }
    if let Some(later) = later {
        let Some(from) = &later.restored else {
            return Err(format!(
                "checkpoint {committed} was committed, and the program began from the start"
            ));
        };
        // Names of SCR are no numbers; those that are have to be at least what was committed.
        if let Ok(number) = from.0.parse::<u32>()
            && number < committed
        {
            return Err(format!(
                "checkpoint {committed} was committed, and the program went on from {number}"
            ));
        }
        // The newest that was said may have been on its way to the nodes; the one before it was there.
        if let [.., second, _] = &passed(&moment.starts)[..]
            && from.1 < second.1
        {
            return Err(format!(
                "more than an interval was done again: {second:?} was saved, and it went on at {}",
                from.1
            ));
        }
    }
    if newest <= moment.committed {
        return Err(format!("no checkpoint was made after {committed}"));
    }
    Ok(())
}

/// What rank 0 has said in the first start after these in which it came so far as to begin. One that fails before that is started again by the script: a rank
/// of Open MPI was seen to, by a segmentation fault before it had written a line.
fn later<'a>(starts: &'a [Start], before: &[Start]) -> Option<&'a Said> {
    let after = starts.get(before.len()..).unwrap_or_default();
    let mut first = after.iter().filter_map(|start| start.get(&0));
    first.find(|said| said.new || said.restored.is_some())
}

/// The checkpoints of rank 0 in the last start: from which it went on, and those that it has saved.
fn passed(starts: &[Start]) -> Vec<Saved> {
    let last = starts.last().and_then(|start| start.get(&0));
    let restored = last.and_then(|said| said.restored.clone());
    let saved = last.map_or(&[][..], |said| &said.saved[..]);
    restored.into_iter().chain(saved.iter().cloned()).collect()
}

/// How many steps rank 0 did again: from what it went on to what it is known to have reached.
pub(crate) fn again(starts: &[Start], before: &[Start]) -> u64 {
    let from = later(starts, before).and_then(|said| said.restored.as_ref());
    from.map_or(0, |(_, count)| reached(before).saturating_sub(*count))
}

/// The count that rank 0 is known to have reached.
pub(crate) fn reached(starts: &[Start]) -> u64 {
    passed(starts).last().map_or(0, |(_, count)| *count)
}
