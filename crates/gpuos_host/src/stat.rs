//! What a file is, and who may read it.

use std::io;
use std::path::{Path, PathBuf};

use crate::Machine;

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// A file.
    #[default]
    File,
    /// A folder.
    Folder,
    /// A device, a pipe, a socket.
    Other,
}

/// What matters of a file's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, without the type.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub length: u64,
    /// When it was written last, in seconds since 1970.
    pub modified: u64,
}

/// A user, as far as permissions go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// Name, as it was asked for.
    pub name: String,
    /// Id.
    pub uid: u32,
    /// Groups, the first one too.
    pub gids: Vec<u32>,
}

impl User {
    /// The user that the system knows by that name, or by that number. `None`: there is none.
    pub fn find(machine: &dyn Machine, name: &str) -> Option<User> {
        if name == "root" || name == "0" {
            return Some(User {
                name: "root".into(),
                uid: 0,
                gids: vec![0],
            });
        }
        let numbers = |option: &str| -> Option<Vec<u32>> {
            let output = machine.run("id", &[option, "--", name]).ok()?;
            let words = output.stdout.split_whitespace();
            let numbers: Option<Vec<u32>> = words.map(|word| word.parse().ok()).collect();
            numbers.filter(|numbers| output.ok && !numbers.is_empty())
        };
        Some(User {
            name: name.into(),
            uid: *numbers("-u")?.first()?,
            gids: numbers("-G")?,
        })
    }

    /// Somebody without a name: what all users may do.
    pub fn anybody() -> User {
        User {
            name: "all users".into(),
            uid: u32::MAX - 1,
            gids: Vec::new(),
        }
    }

    /// Whether these rights (4 read, 2 write, 1 search) are given to the user.
    pub fn may(&self, rights: u32, stat: &Stat) -> bool {
        let shift = match () {
            () if self.uid == 0 => return true,
            () if self.uid == stat.uid => 6,
            () if self.gids.contains(&stat.gid) => 3,
            () => 0,
        };
        stat.mode >> shift & rights == rights
    }

    /// The first part of a path that keeps the user from reading it: a folder above, or itself. `None`: the user may
    /// read it, or nobody can tell.
    pub fn unreadable_part(&self, machine: &dyn Machine, path: &Path) -> Option<PathBuf> {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        let closed = |folder: &&&Path| {
            let stat = machine.stat(folder);
            stat.is_ok_and(|stat| stat.kind == Kind::Folder && !self.may(1, &stat))
        };
        if let Some(folder) = above.iter().rev().find(closed) {
            return Some(folder.to_path_buf());
        }
        let stat = machine.stat(path).ok()?;
        let needs = if stat.kind == Kind::Folder { 5 } else { 4 };
        (!self.may(needs, &stat)).then(|| path.to_path_buf())
    }
}

/// The record of a file of this machine; links are followed.
pub(crate) fn stat(path: &Path) -> io::Result<Stat> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path)?;
    Ok(Stat {
        kind: match () {
            () if found.is_file() => Kind::File,
            () if found.is_dir() => Kind::Folder,
            () => Kind::Other,
        },
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        length: found.len(),
        modified: found.mtime().try_into().unwrap_or(0),
    })
}

/// Bytes of a file system that are free to ordinary programs, and how many it has.
pub(crate) fn disk_space(path: &Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statvfs(path)?;
    let block = found.f_frsize;
    Ok((
        found.f_bavail.saturating_mul(block),
        found.f_blocks.saturating_mul(block),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_owner_group_or_others() {
        let user = User {
            name: "slurm".into(),
            uid: 64030,
            gids: vec![64030, 7],
        };
        let file = |mode, uid, gid| Stat {
            mode,
            uid,
            gid,
            ..Stat::default()
        };
        assert!(user.may(4, &file(0o400, 64030, 0)));
        assert!(
            !user.may(4, &file(0o044, 64030, 0)),
            "the owner's bits count alone"
        );
        assert!(user.may(4, &file(0o040, 0, 7)) && !user.may(4, &file(0o600, 0, 7)));
        assert!(user.may(4, &file(0o644, 0, 0)) && !user.may(2, &file(0o644, 0, 0)));
        assert!(
            User::find(&crate::ThisMachine, "root")
                .unwrap()
                .may(7, &file(0, 1, 1))
        );
        assert_eq!(User::find(&crate::ThisMachine, "no-such-user-here"), None);
    }

    #[test]
    fn a_folder_above_keeps_users_out_too() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        let file = closed.join("x.so");
        std::fs::write(&file, "x").unwrap();
        let kept = || User::anybody().unreadable_part(&crate::ThisMachine, &file);
        mode(dir.path(), 0o755);
        mode(&closed, 0o755);
        mode(&file, 0o600);
        assert_eq!(kept(), Some(file.clone()));
        mode(&file, 0o644);
        assert_eq!(kept(), None);
        mode(&closed, 0o700);
        assert_eq!(kept(), Some(closed.clone()));
        let (free, all) = disk_space(dir.path()).unwrap();
        assert!(free <= all && all > 0);
    }
}
