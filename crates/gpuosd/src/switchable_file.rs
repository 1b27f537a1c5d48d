//! The file beside the socket that tells spank_gpuos which GPUs are MIG-switchable: steps that have one whole wait until it is.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use gpuos_model::gpuset::GpuSet;

use crate::mig::pool::Switchable;

/// Writes the numbers in GRES `gpu`, as `6-7`; where none are MIG-switchable, there is no file.
///
/// # Errors
/// It cannot be written or removed: a sentence.
pub fn write(path: &Path, switchable: &Switchable) -> Result<(), String> {
    let done = match switchable.is_empty() {
        true => fs::remove_file(path).or_else(|e| match e.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(e),
        }),
        false => replace(path, switchable),
    };
    done.map_err(|e| {
        format!(
            "{}, which tells steps which GPUs are MIG-switchable: {e}",
            path.display()
        )
    })
}

fn replace(path: &Path, switchable: &Switchable) -> io::Result<()> {
    let gpus = switchable.values().map(|gpu| gpu.index());
    let gpus = gpus.fold(GpuSet::EMPTY, GpuSet::with);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, format!("{gpus}\n"))?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_while_gpus_move() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpuosd.sock.switchable");
        let switchable = [(6, 4), (7, 5)];
        let switchable =
            switchable.map(|(nvml, gres)| (nvml.try_into().unwrap(), gres.try_into().unwrap()));
        let switchable = Switchable::from(switchable);
        write(&path, &Switchable::new()).unwrap();
        write(&path, &switchable).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4-5\n");
        write(&path, &Switchable::new()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let why = write(&folder.path().join("none/x"), &switchable).unwrap_err();
        assert!(why.contains("none/x, which tells steps"), "{why}");
    }
}
