//! What an attempt is, and how it is written down.

use crate::stage::Stage;

/// What came of an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// What must hold holds.
    Held,
    /// It does not: what was seen instead.
    Broken(String),
    /// It cannot be tried here: why.
    Skipped(String),
}

impl From<Result<(), String>> for Verdict {
    fn from(result: Result<(), String>) -> Verdict {
        match result {
            Ok(()) => Verdict::Held,
            Err(seen) => Verdict::Broken(seen),
        }
    }
}

/// Looks, from a view that the attacker does not have, whether what must hold holds.
pub type Judge = Box<dyn FnOnce(&Stage) -> Verdict>;

/// Begins an attempt. It waits for nothing: all attempts of a wave are under way at once.
pub type Begin = Box<dyn FnOnce(&Stage) -> Judge>;

/// When an attempt is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wave {
    /// With job_submit/gpuos, and before any job is there.
    Early,
    /// With job_submit/gpuos.
    Checked,
    /// The same, for programs with checkpoints: with all others at once gpuosd and gpuos_mover would answer steps late on two processors.
    Saving,
    /// The same, with jobs that have GPUs in turns with a victim's each: after the jobs of others have ended.
    Turned,
    /// The same, with options that gpuos.toml forbids in the partition `walled`.
    Walled,
    /// Without it, so that whatever Slurm takes comes into its records.
    Unchecked,
}

/// One thing that an ordinary user may try.
pub struct Attempt {
    /// A few words.
    pub name: String,
    /// The input by which it comes, as SECURITY.md names it.
    pub input: &'static str,
    /// What must hold.
    pub holds: &'static str,
    /// When.
    pub wave: Wave,
    /// Whether it is in the short selection, which runs on every release.
    pub short: bool,
    /// What the attacker does.
    pub begin: Begin,
}

/// An attempt of the wave [`Wave::Checked`], not in the short selection.
pub fn attempt<F>(
    input: &'static str,
    name: impl Into<String>,
    holds: &'static str,
    begin: F,
) -> Attempt
where
    F: FnOnce(&Stage) -> Judge + 'static,
{
    Attempt {
        name: name.into(),
        input,
        holds,
        wave: Wave::Checked,
        short: false,
        begin: Box::new(begin),
    }
}

impl Attempt {
    /// The same in another wave.
    pub fn in_wave(self, wave: Wave) -> Attempt {
        Attempt { wave, ..self }
    }

    /// The same, on every release.
    pub fn short(self) -> Attempt {
        Attempt {
            short: true,
            ..self
        }
    }
}

/// A judge of one that needs nothing of the stage but its look.
pub fn judge<F>(look: F) -> Judge
where
    F: FnOnce(&Stage) -> Result<(), String> + 'static,
{
    Box::new(move |stage| look(stage).into())
}

/// What is known already when the attempt begins.
pub fn known(verdict: impl Into<Verdict>) -> Judge {
    let verdict = verdict.into();
    Box::new(move |_| verdict)
}

/// `Err` with what was seen unless `good`.
pub fn ensure(good: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    match good {
        true => Ok(()),
        false => Err(seen()),
    }
}
