//! Whether gpuos's choices are taken: the counters of slurmctld's recording.

use gpuos_placement::record::{self, Tally};

use super::Context;
use super::about::{self, About};
use super::findings::Findings;
use crate::replay::ring_of;
use crate::steering::sentence;

const NAME: About = about::STEERING;
/// With fewer jobs than this a share says little.
const ENOUGH: u64 = 50;
/// What a share of jobs and a share of refusals may come to, in percent.
const LEAST_STEERED: f64 = 99.0;
const MOST_REFUSED: f64 = 1.0;

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(running) = look.running.filter(|_| look.selected()) else {
        return;
    };
    let file = ring_of(&running.directory());
    // Without a recording, or the right to read it, there is nothing to say here.
    let Ok(bytes) = look.machine.read(&file) else {
        return;
    };
    let Some(tally) = record::tally(&bytes) else {
        return;
    };
    if is_low(&tally) {
        findings
            .warn(
                NAME,
                sentence(&tally),
                "run `gpuos replay` and see in slurmctld's log (DebugFlags=SelectType) why nodes are refused; report it \
                 with the options of such a job",
            )
            .why("jobs for which Slurm refuses gpuos's choices are placed by Slurm alone, and take it longer");
    } else {
        findings.ok(NAME, sentence(&tally));
    }
}

fn is_low(tally: &Tally) -> bool {
    let few = tally.placed + tally.left < ENOUGH;
    !few && (tally
        .steered_percent()
        .is_some_and(|share| share < LEAST_STEERED)
        || tally
            .refused_percent()
            .is_some_and(|share| share > MOST_REFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_share_is_told_once_there_are_enough_jobs() {
        let tally = |placed, left, refused| Tally {
            calls: 1000,
            placed,
            left,
            refused,
            ..Tally::default()
        };
        assert!(!is_low(&Tally::default()));
        assert!(!is_low(&tally(4, 4, 0)));
        assert!(!is_low(&tally(990, 10, 10)));
        assert!(is_low(&tally(989, 11, 0)));
        assert!(is_low(&tally(400, 0, 11)));
    }
}
