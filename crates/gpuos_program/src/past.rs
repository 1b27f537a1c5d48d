//! What became of the checkpoint that a rank has saved last.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::folder::{End, Folder};
use crate::rank::Rank;

/// A checkpoint that this rank has saved, and that came to nothing: the program would not go on from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Its number.
    pub number: u32,
    /// Why: a sentence.
    pub why: String,
}

/// What a rank has saved, as far as it counts for what it is told.
#[derive(Default, Debug)]
pub(crate) struct Past(Mutex<Known>);

#[derive(Default, Debug)]
struct Known {
    /// The last one that it has saved, while it is not known what became of it.
    open: Option<u32>,
    /// The last one of which that is known, if it came to nothing.
    lost: Option<Lost>,
    /// From which one the program went on.
    from: Option<u32>,
}

impl Past {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rank has joined, and goes on from this checkpoint.
    pub(crate) fn begin(&self, from: Option<u32>) {
        let known = Known {
            from,
            ..Known::default()
        };
        *self.lock() = known;
    }

    /// The rank has saved one.
    pub(crate) fn saved(&self, number: u32) {
        self.lock().open = Some(number);
    }

    /// The caller was told what became of one.
    pub(crate) fn told(&self, number: u32, lost: Option<&str>) {
        let mut known = self.lock();
        if known.open.take_if(|open| *open == number).is_some() {
            known.lost = lost.map(|why| Lost {
                number,
                why: why.into(),
            });
        }
    }

    /// Looks what became of the last one. One that came to nothing is said once on standard error, by rank 0.
    pub(crate) fn look(&self, folder: &Folder, rank: Rank) {
        let mut known = self.lock();
        let Some(number) = known.open else {
            return;
        };
        match folder.end(number) {
            Ok(Some(End::Committed)) => (known.open, known.lost) = (None, None),
            Ok(Some(End::Failed(why))) => {
                if rank.rank() == 0 {
                    let newest = folder.newest().max(known.from);
                    eprintln!("gpuos: {}", sentence(number, &why, newest));
                }
                (known.open, known.lost) = (None, Some(Lost { number, why }));
            }
            // What cannot be read now is looked at again.
            Ok(None) | Err(_) => {}
        }
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lock().lost.clone()
    }
}

/// For the program's user.
fn sentence(number: u32, why: &str, newest: Option<u32>) -> String {
    let from = match newest {
        Some(newest) => format!("it would begin again from checkpoint {newest}"),
        None => "it would begin again from its start".into(),
    };
    format!(
        "checkpoint {number} was saved and came to nothing: {why}; the program goes on, and {from}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_hears_where_the_program_would_begin_again() {
        assert_eq!(
            sentence(4, "the disk is full", Some(3)),
            "checkpoint 4 was saved and came to nothing: the disk is full; the program goes on, and it would begin again from checkpoint 3"
        );
        assert!(sentence(1, "no", None).ends_with("from its start"));
    }
}
