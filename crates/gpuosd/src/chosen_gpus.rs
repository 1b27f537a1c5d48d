//! Which GPUs were chosen for jobs of PBS, in a file of the state directory: the next gpuosd goes by it.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use gpuos_host::pbs::ChoiceStore;

use crate::store;

/// Name of the file in the state directory.
pub const NAME: &str = "chosen-gpus.json";
/// No file comes near this.
const MOST: u64 = 4 << 20;

/// The file.
#[derive(Debug)]
pub struct ChosenGpus {
    /// The state directory.
    pub folder: PathBuf,
}

impl ChoiceStore for ChosenGpus {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.folder.join(NAME)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        store::write_as(NAME, &self.folder, bytes)
    }

    fn warn(&self, sentence: &str) {
        tracing::warn!("{sentence}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_there_for_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = ChosenGpus {
            folder: folder.path().join("state"),
        };
        assert_eq!(file.load().unwrap(), None);
        for text in [&b"one"[..], b"other"] {
            file.save(text).unwrap();
            assert_eq!(file.load().unwrap().as_deref(), Some(text));
        }
    }
}
