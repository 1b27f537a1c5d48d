//! Nodes whose GPUs slurmctld does not know yet.
//!
//! From a start of slurmctld until a node registers, some releases start GPU jobs there that get no GPU in their own record. A job
//! that would is withheld from the node until it has registered.

/// By what a release of Slurm starts GPU jobs on a node that has not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedTopology {
    /// It is as slurmctld saved it: jobs get their GPUs.
    Used,
    /// It is as slurmctld saved it once the node answers; till then it is not used.
    UsedOnceItAnswers,
    /// It is not saved.
    Lost,
    /// It is saved, and not used.
    Ignored,
}

/// What slurmctld knows of a GRES of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// It is from slurm.conf and saved state alone.
    pub provisional: bool,
    /// Which devices are of which type was saved.
    pub has_topology: bool,
    /// slurm.conf names types.
    pub has_types: bool,
    /// The node does not answer.
    pub out_of_touch: bool,
    /// Power saving has the node off: it registers only after a job has been given to it.
    pub power_saved: bool,
}

impl SavedTopology {
    /// Whether such a release starts jobs on nodes that it does not know yet.
    pub const fn matters(self) -> bool {
        !matches!(self, SavedTopology::Used)
    }

    /// Whether a job that starts on the node now would lack what it gets of the GRES in its own record.
    pub const fn loses(self, known: Known) -> bool {
        let saved = known.has_topology;
        let unsaved = !saved && known.has_types;
        known.provisional
            && match self {
                SavedTopology::Used => false,
                SavedTopology::UsedOnceItAnswers => unsaved || saved && known.out_of_touch,
                SavedTopology::Lost => unsaved,
                SavedTopology::Ignored => unsaved || saved,
            }
            && !known.power_saved
    }

    /// What a job may do with the node.
    pub const fn readiness(self, known: Known) -> Readiness {
        if self.loses(known) {
            Readiness::Waits
        } else if !known.provisional || known.power_saved {
            Readiness::ForGood
        } else {
            // An answer is not for good, a registration is.
            Readiness::Now
        }
    }
}

/// Whether jobs may have the GPUs of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Until the table of nodes is made anew.
    ForGood,
    /// Now; it is to be asked again.
    Now,
    /// Not until it has registered.
    Waits,
}
