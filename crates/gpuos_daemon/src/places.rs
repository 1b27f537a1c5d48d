//! Whether a folder that root writes in is nobody else's.
//!
//! Who owns a folder, or one above it, can put another one or a link in its place at any moment. So gpuosd works in no
//! folder that an ordinary user could have made: `/tmp/gpuos`, say, before gpuosd itself did.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Numbers from here on are those of ordinary users (`UID_MIN` of login.defs).
const ORDINARY: u32 = 1000;
/// Everybody may write.
const ALL_WRITE: u32 = 0o002;
/// In such a folder nobody may move what is another's.
const STICKY: u32 = 0o1000;

/// Why root should not write in a folder; `None`: it may. A folder that is not there yet is judged by those above it.
pub fn unsafe_to_write(folder: &Path) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let whole = std::path::absolute(folder).ok()?;
    // As it is written, and where links on the way lead.
    let real = fs::canonicalize(&whole).unwrap_or_else(|_| whole.clone());
    let ways = [&whole, &real];
    let all = ways.iter().flat_map(|way| way.ancestors().enumerate());
    for (depth, place) in all {
        let (Ok(link), Ok(at)) = (fs::symlink_metadata(place), fs::metadata(place)) else {
            continue;
        };
        let foreign = [&link, &at].map(|of| of.uid());
        let foreign = foreign
            .into_iter()
            .find(|uid| *uid >= ORDINARY && *uid != own);
        let place = place.display();
        if let Some(uid) = foreign {
            return Some(format!(
                "{place} is of user {uid}, who could put anything in its place"
            ));
        }
        let open = at.mode() & ALL_WRITE != 0 && at.is_dir();
        // Above the folder itself it is enough that nobody may move what is ours.
        if open && (depth == 0 || at.mode() & STICKY == 0) {
            return Some(format!("everybody may write in {place}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn folders_of_users_and_of_everybody_are_refused() {
        let all = tempfile::tempdir().unwrap();
        let path = |name: &str| all.path().join(name);
        for name in ["own", "open", "sticky"] {
            fs::create_dir_all(path(name).join("in")).unwrap();
        }
        let mode = |name: &str, mode| fs::set_permissions(path(name), Permissions::from_mode(mode));
        mode("open", 0o777).unwrap();
        mode("sticky", 0o1777).unwrap();
        symlink(path("open"), path("own/link")).unwrap();
        for (name, safe) in [
            ("own", true),
            ("own/in", true),
            ("own/not/there/yet", true),
            ("sticky/in", true),
            ("sticky", false),
            ("open", false),
            ("open/in", false),
            ("open/not-yet", false),
            ("own/link/in", false),
        ] {
            let why = unsafe_to_write(&path(name));
            assert_eq!(why.is_none(), safe, "{name}: {why:?}");
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        chown(path("own"), Some(1000), None).unwrap();
        for name in ["own", "own/in"] {
            let why = unsafe_to_write(&path(name)).unwrap();
            assert!(why.contains("user 1000"), "{why}");
        }
    }
}
