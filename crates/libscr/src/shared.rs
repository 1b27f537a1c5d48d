//! Files that several ranks write together, as MPI-IO and parallel HDF5 do: all ranks have one path for them, in a folder of the program's own file
//! system. When they are complete each rank takes a part of each into its own files of the checkpoint, and at a restart each brings its part
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// In a rank's folder of a checkpoint: which parts of which files it has, and these.
const LIST: &str = "shared";
const PARTS: &str = "parts";
/// In the folder of all: the names that each rank has used, and those of them that are shared.
const USED: &str = ".used.";
const SHARED: &str = ".shared";
/// Variables with the job's number, of each manager.
const JOB: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "JOB_ID"];
/// No part is shorter, but for the last: pages of a file system.
const PAGE: u64 = 4096;

/// The folder of all for a checkpoint: below the prefix, for it is on the file system on which the program's files are.
pub(crate) fn folder(prefix: &Path, what: &str) -> PathBuf {
    let job = JOB.iter().find_map(|name| std::env::var(name).ok());
    let job: String = job
        .unwrap_or_default()
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '.')
        .collect();
    prefix.join(format!(".gpuos-{job}-{what}"))
}

/// One rank makes it, empty.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)
}

/// Says which names this rank has used.
pub(crate) fn tell(folder: &Path, rank: u64, used: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mut text = Vec::new();
    for name in used {
        text.extend(name.as_os_str().as_bytes());
        text.push(0);
    }
    fs::write(folder.join(format!("{USED}{rank}")), text)
}

/// One rank finds, when all have told, which names more than one has used, and tells that.
pub(crate) fn find(folder: &Path, size: u64) -> io::Result<()> {
    let mut by: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
    for rank in 0..size {
        let text = fs::read(folder.join(format!("{USED}{rank}")))?;
        for name in text
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            by.entry(name.to_vec()).or_default().push(rank);
        }
    }
    let mut text = Vec::new();
    for (name, ranks) in by.iter().filter(|(_, ranks)| ranks.len() > 1) {
        let ranks: Vec<String> = ranks.iter().map(u64::to_string).collect();
        text.extend(name);
        text.push(0);
        text.extend(ranks.join(",").as_bytes());
        text.push(0);
    }
    fs::write(folder.join(SHARED), text)
}

/// The shared names, each with the ranks that have used it.
fn found(folder: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u64>>> {
    let text = fs::read(folder.join(SHARED))?;
    let words: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let pairs = words.chunks_exact(2).map(|pair| {
        let ranks = String::from_utf8_lossy(pair[1]);
        let ranks = ranks.split(',').filter_map(|rank| rank.parse().ok());
        (path(pair[0]), ranks.collect())
    });
    Ok(pairs.collect())
}

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

/// Takes this rank's part of all files of a checkpoint: files that it alone has used whole, into `data`, and its parts of the others beside that.
/// Gives the names that it is to bring to where they say if the checkpoint is output, too: of a shared one the first rank does.
pub(crate) fn take(
    folder: &Path,
    data: &Path,
    rank: u64,
    used: &BTreeSet<PathBuf>,
) -> io::Result<BTreeSet<PathBuf>> {
    let shared = found(folder)?;
    let beside = data.parent().unwrap_or(data);
    let parts = beside.join(PARTS);
    if parts.exists() {
        fs::remove_dir_all(&parts)?;
    }
    fs::create_dir(&parts)?;
    let (mut list, mut own) = (Vec::new(), BTreeSet::new());
    for name in used {
        let from = folder.join(name);
        let Some(ranks) = shared.get(name) else {
            // A name that was asked for and not used is no file.
            if from.exists() {
                let to = data.join(name);
                if let Some(above) = to.parent() {
                    fs::create_dir_all(above)?;
                }
                fs::copy(&from, &to)?;
                own.insert(name.clone());
            }
            continue;
        };
        if !from.exists() {
            continue;
        }
        let size = fs::metadata(&from)?.len();
        let nth = ranks.iter().position(|one| *one == rank).unwrap_or(0) as u64;
        let (start, end) = part(size, nth, ranks.len() as u64);
        let number = list.len();
        let mut file = File::open(&from)?;
        file.seek(SeekFrom::Start(start))?;
        let mut to = File::create(parts.join(number.to_string()))?;
        let copied = io::copy(&mut file.take(end - start), &mut to)?;
        if copied != end - start {
            return Err(io::Error::other(format!(
                "{} became shorter",
                from.display()
            )));
        }
        list.push((name.clone(), start, size));
        if nth == 0 {
            own.insert(name.clone());
        }
    }
    let mut text = Vec::new();
    for (name, start, size) in list {
        text.extend(name.as_os_str().as_bytes());
        text.extend(format!("\0{start}\0{size}\0").as_bytes());
    }
    fs::write(beside.join(LIST), text)?;
    Ok(own)
}

/// Where a rank's part begins and ends: whole pages, so that each is read by one.
fn part(size: u64, nth: u64, of: u64) -> (u64, u64) {
    let step = size.div_ceil(of.max(1)).next_multiple_of(PAGE);
    let at = |nth: u64| step.saturating_mul(nth).min(size);
    (at(nth), at(nth + 1))
}

/// Whether a checkpoint has parts of files that ranks share. `data` is this rank's folder of it.
pub(crate) fn has(data: &Path) -> bool {
    let list = data.parent().map(|beside| beside.join(LIST));
    list.and_then(|list| fs::metadata(list).ok())
        .is_some_and(|list| list.len() > 0)
}

/// Brings this rank's parts back into the folder of all.
pub(crate) fn bring(folder: &Path, data: &Path) -> io::Result<()> {
    let beside = data.parent().unwrap_or(data);
    let text = match fs::read(beside.join(LIST)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let words: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    for (number, words) in words.chunks_exact(3).enumerate() {
        let count = |word: &[u8]| {
            let number = std::str::from_utf8(word).ok()?.parse::<u64>().ok();
            number.filter(|number| *number < i64::MAX as u64)
        };
        let (Some(start), Some(size)) = (count(words[1]), count(words[2])) else {
            return Err(io::Error::other("the list of shared files is damaged"));
        };
        let to = folder.join(path(words[0]));
        if let Some(above) = to.parent() {
            fs::create_dir_all(above)?;
        }
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&to)?;
        file.set_len(size)?;
        file.seek(SeekFrom::Start(start))?;
        let mut from = File::open(beside.join(PARTS).join(number.to_string()))?;
        io::copy(&mut from, &mut file)?;
    }
    Ok(())
}

/// A number for a name, to be compared among ranks.
pub(crate) fn number(name: &Path) -> i32 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in name.as_os_str().as_bytes() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    // Of 31 bits, so that its negative is a number too.
    (hash >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_pages_and_together_the_file() {
        for (size, of) in [(0, 4), (1, 4), (4096, 3), (10_000, 4), (1 << 20, 7), (5, 1)] {
            let parts: Vec<(u64, u64)> = (0..of).map(|nth| part(size, nth, of)).collect();
            let mut at = 0;
            for (start, end) in &parts {
                assert_eq!(*start, at);
                assert!(start % PAGE == 0 || *start == size);
                at = *end;
            }
            assert_eq!(at, size, "{size} of {of}");
        }
    }

    #[test]
    fn what_ranks_have_written_together_comes_back() {
        let place = tempfile::tempdir().expect("a folder");
        let all = place.path().join("all");
        make(&all).expect("made");
        let bytes: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
        fs::create_dir(all.join("deep")).expect("made");
        fs::write(all.join("deep/together"), &bytes).expect("written");
        let used = |rank: u64| {
            let own = PathBuf::from(format!("own.{rank}"));
            BTreeSet::from([PathBuf::from("deep/together"), own, "never".into()])
        };
        let data = |rank: u64| place.path().join(format!("rank{rank}/data"));
        for rank in 0..3 {
            fs::write(all.join(format!("own.{rank}")), format!("{rank}\n")).expect("written");
            fs::create_dir_all(data(rank)).expect("made");
            tell(&all, rank, &used(rank)).expect("told");
        }
        find(&all, 3).expect("found");
        for rank in 0..3 {
            let own = take(&all, &data(rank), rank, &used(rank)).expect("taken");
            assert_eq!(own.contains(Path::new("deep/together")), rank == 0);
            assert!(own.contains(Path::new(&format!("own.{rank}"))) && has(&data(rank)));
            let own = fs::read_to_string(data(rank).join(format!("own.{rank}")));
            assert_eq!(own.expect("taken"), format!("{rank}\n"));
        }
        let back = place.path().join("back");
        make(&back).expect("made");
        for rank in [2, 0, 1] {
            bring(&back, &data(rank)).expect("brought");
        }
        assert_eq!(fs::read(back.join("deep/together")).expect("there"), bytes);
        assert!(!back.join("never").exists());
        // A checkpoint without such files.
        let none = place.path().join("none/data");
        fs::create_dir_all(&none).expect("made");
        assert!(!has(&none) && bring(&back, &none).is_ok());
    }

    #[test]
    fn names_have_numbers_whose_negatives_are_numbers() {
        let name = number(Path::new("ckpt.h5"));
        assert!(name >= 0 && name == number(Path::new("ckpt.h5")));
        assert_ne!(name, number(Path::new("ckpt.h6")));
    }
}
