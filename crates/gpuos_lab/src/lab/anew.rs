//! Whether the daemons of a lab have started anew: after `scontrol reconfigure` each may be the same process as before, so that its log
//! alone tells.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Lab, READY};
use crate::error::LabError;
use crate::process::Stat;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// How far the logs of those daemons were that will start anew.
pub(super) struct Before<'a> {
    lab: &'a Lab,
    slurmctld: usize,
    slurmds: Vec<(String, usize)>,
}

impl Before<'_> {
    /// Looks, once each slurmd that was started before has said that it is there: it would seem to start anew else.
    pub(super) fn look(lab: &Lab) -> Before<'_> {
        // One that did not run is not started, and one that is stopped does not hear of it.
        let hears = |pid: u32| Stat::read(pid).is_some_and(|stat| stat.state != 'T');
        let mut nodes = lab.spec().node_names();
        nodes.retain(|node| lab.slurmd_pid(node).is_some_and(hears));
        let deadline = Instant::now() + READY;
        let up = |node: &String| is_up(&lab.slurmd_log(node));
        while !nodes.iter().all(up) && Instant::now() < deadline {
            sleep(LOOK);
        }
        let length = |node: String| {
            let length = lab.slurmd_log(&node).len();
            (node, length)
        };
        Before {
            lab,
            slurmctld: lab.slurmctld_log().len(),
            slurmds: nodes.into_iter().map(length).collect(),
        }
    }

    /// Waits until all have started anew and slurmctld answers: whoever asks before that may hear of the nodes from the old slurmctld, or
    /// meet no slurmd.
    ///
    /// # Errors
    /// Some daemon has not started anew within [`READY`]: with the end of its log.
    pub(super) fn wait(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + READY;
        while let Some(late) = self.late() {
            if Instant::now() > deadline {
                let limit = READY.as_secs();
                let what = format!("has not started anew within {limit} s of a reconfigure");
                return Err(self.lab.daemons().failed(&late, &what));
            }
            sleep(LOOK);
        }
        // It says that it has started before it listens.
        while !self.lab.output("sinfo", &["-h"])?.status.success() {
            if Instant::now() > deadline {
                let what = "has started anew and does not answer sinfo";
                return Err(self.lab.daemons().failed("slurmctld", what));
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// One that has not started anew yet.
    fn late(&self) -> Option<String> {
        let says = |log: &str, from: usize, words: &str| {
            let new = log.get(from..);
            new.is_some_and(|new| new.contains(words))
        };
        let lab = self.lab;
        if !says(&lab.slurmctld_log(), self.slurmctld, " started on cluster ") {
            return Some("slurmctld".into());
        }
        let anew =
            |(node, from): &&(String, usize)| says(&lab.slurmd_log(node), *from, " started on ");
        let late = self.slurmds.iter().find(|one| !anew(one));
        late.map(|(node, _)| format!("slurmd.{node}"))
    }
}

/// Whether a slurmd that has begun has come to its end of beginning, by its log.
fn is_up(log: &str) -> bool {
    let begun = log.rfind("slurmd version ");
    begun.is_none_or(|begun| log[begun..].contains(" started on "))
}

#[cfg(test)]
mod tests {
    use super::is_up;

    #[test]
    fn a_slurmd_is_up_once_it_has_said_so_since_it_began() {
        let begun = "[t] slurmd version 25.11.2 started\n";
        let up = "[t] slurmd started on Fri, 27 Nov 2026 10:00:00 +0000\n";
        assert!(is_up(""));
        assert!(!is_up(begun));
        assert!(is_up(&format!("{begun}{up}")));
        assert!(!is_up(&format!("{begun}{up}[t] more\n{begun}")));
        assert!(is_up(&format!("{begun}{up}[t] more\n{begun}{up}")));
    }
}
