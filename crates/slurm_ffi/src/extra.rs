//! The text in a node's `Extra`, remembered so that it is read anew only when it has changed.

use crate::mem::{read, read_text};
use crate::sizes::XMALLOC_MAGIC;

/// The longest text that is read, in bytes. Slurm sets no limit; a longer one is an error value.
pub const MOST: usize = 65_536;

/// One node's text as it was read last.
#[derive(Default)]
pub struct Remembered {
    at: usize,
    /// With its NUL; empty where there is none.
    text: Vec<u8>,
}

impl Remembered {
    /// Whether there was a text.
    pub fn is_some(&self) -> bool {
        self.at != 0
    }

    /// Whether the text at `at` ([`Node::extra`](crate::nodes::Node::extra)) is still the one that is
    /// remembered.
    ///
    /// # Safety
    /// `at` is what the record of the same node has now, and the caller holds slurmctld's node read lock.
    pub unsafe fn is_same(&self, at: usize) -> bool {
        if at != self.at {
            return false;
        }
        let mut here = at as *const u8;
        self.text.iter().all(|expected| {
            // SAFETY: when this address was read first it was a string of Slurm's allocator, so the field is
            // where the table says; it still holds one, of which no byte after its NUL is read, since the
            // remembered text has its only NUL at its end.
            unsafe {
                let same = here.read() == *expected;
                here = here.add(1);
                same
            }
        })
    }

    /// Reads the text at `at`, by reads that cannot fault, and remembers it. The error says what there is
    /// instead of a text of Slurm's.
    pub fn set(&mut self, at: usize) -> Result<String, String> {
        *self = Remembered::default();
        if at == 0 {
            return Ok(String::new());
        }
        let magic: Option<u64> = read(at.wrapping_sub(16));
        if magic != Some(XMALLOC_MAGIC) {
            return Err("the Extra of a node is not a string of Slurm's".into());
        }
        let mut text = read_text(at, MOST)
            .ok_or_else(|| format!("the Extra of a node is longer than {MOST} bytes"))?;
        let told = String::from_utf8_lossy(&text).into_owned();
        text.push(0);
        *self = Remembered { at, text };
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A string as Slurm's allocator lays it out; its text can be changed in place.
    struct Text(Vec<u64>);

    impl Text {
        fn new(text: &[u8]) -> Text {
            let mut one = Text(vec![XMALLOC_MAGIC, 64, 0, 0, 0, 0, 0, 0, 0, 0]);
            one.push(text);
            one
        }

        fn push(&mut self, text: &[u8]) {
            for (word, bytes) in self.0[2..].iter_mut().zip(text.chunks(8)) {
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(eight);
            }
        }

        fn at(&self) -> usize {
            self.0[2..].as_ptr() as usize
        }
    }

    fn same(remembered: &Remembered, at: usize) -> bool {
        // SAFETY: the addresses of the test are 0 or those of a `Text` that lives.
        unsafe { remembered.is_same(at) }
    }

    #[test]
    fn a_text_is_read_again_only_when_it_has_changed() {
        let mut remembered = Remembered::default();
        assert!(same(&remembered, 0) && !remembered.is_some());
        let mut text = Text::new(b"rack 7 [gpuos:1 out=2]");
        assert!(!same(&remembered, text.at()));
        let told = remembered.set(text.at()).expect("a text");
        assert_eq!(told, "rack 7 [gpuos:1 out=2]");
        assert!(same(&remembered, text.at()) && remembered.is_some());
        // The allocator gives a freed place out again: the address alone says nothing.
        text.push(b"rack 7 [gpuos:1 out=3]");
        assert!(!same(&remembered, text.at()));
        text.push(b"rack 7 \0");
        assert!(!same(&remembered, text.at()));
        assert_eq!(remembered.set(text.at()).as_deref(), Ok("rack 7 "));
        text.push(b"rack 7 and more \0");
        assert!(!same(&remembered, text.at()));
        assert!(!same(&remembered, 0));
        assert_eq!(remembered.set(0).as_deref(), Ok(""));
        assert!(same(&remembered, 0) && !remembered.is_some());
    }

    #[test]
    fn what_is_no_text_is_an_error() {
        let mut remembered = Remembered::default();
        let mut text = Text::new(b"M\xfcnchen");
        assert_eq!(remembered.set(text.at()).as_deref(), Ok("M\u{fffd}nchen"));
        assert!(same(&remembered, text.at()));
        text.0[0] = 0;
        for address in [text.at(), 1, 8, usize::MAX] {
            assert!(remembered.set(address).is_err(), "{address}");
            assert!(!remembered.is_some());
        }
        let mut long = vec![0x6161_6161_6161_6161; MOST / 8 + 8];
        long[0] = XMALLOC_MAGIC;
        *long.last_mut().expect("long") = 0;
        let why = remembered.set(&raw const long[2] as usize);
        assert!(why.is_err_and(|why| why.contains("longer than 65536 bytes")));
    }
}
