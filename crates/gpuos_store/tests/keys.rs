//! The site's key: who could have read it, and what it opens.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;

use crate::support::*;

fn refused(path: &Path) -> String {
    SiteKey::read(path, None).err().unwrap().to_string()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_key_file_is_taken_only_if_nobody_else_has_access() {
    let place = Place::new();
    let path = place.path("key");
    fs::write(&path, noise(1, 128)).unwrap();
    for bad in [0o440, 0o404, 0o620, 0o602, 0o644, 0o610, 0o601] {
        mode(&path, bad);
        let said = refused(&path);
        assert!(said.contains("group or others have access"), "{said}");
        assert!(said.contains("mode 0400"), "{said}");
    }
    mode(&path, 0o400);
    assert!(SiteKey::read(&path, None).is_ok());
    symlink(&path, place.path("link")).unwrap();
    assert!(refused(&place.path("link")).contains("cannot read the site's key from"));
    assert!(refused(&place.path("none")).contains("No such file"));
    assert!(refused(&place.path("store")).contains("no regular file"));
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("fifo"), rustix::fs::Mode::RUSR).unwrap();
    assert!(refused(&place.path("fifo")).contains("no regular file"));
    for length in [0, 31, (64 << 10) + 1] {
        mode(&path, 0o600);
        fs::write(&path, noise(1, length)).unwrap();
        assert!(refused(&path).contains("a key has 32 to 65536"));
    }
}

/// munge's key is of munge's user: a site says so, or it is refused.
#[test]
fn a_key_of_another_user_is_taken_only_if_the_caller_names_him() {
    if me() != 0 {
        eprintln!("not root: a file of another user cannot be made");
        return;
    }
    let place = Place::new();
    let path = place.path("key");
    fs::write(&path, noise(1, 32)).unwrap();
    mode(&path, 0o600);
    chown(&path, Some(1234), None).unwrap();
    assert!(refused(&path).contains("owned by user 1234"));
    assert!(SiteKey::read(&path, Some(1235)).is_err());
    assert!(SiteKey::read(&path, Some(1234)).is_ok());
}

#[test]
fn keys_differ_by_secret_job_user_and_purpose() {
    let bytes = b"bytes";
    let mut codes = Vec::new();
    for secret in [&noise(1, 32), &noise(2, 32)] {
        let site = SiteKey::derive(secret);
        for (number, uid) in [(1, 1000), (2, 1000), (1, 1001), (11, 100), (1, 1)] {
            let keys = site.of_job(&job(number), uid);
            codes.push(keys.manifest_code(bytes));
            codes.push(keys.extent(bytes).0);
            assert!(keys.manifest_holds(bytes, &keys.manifest_code(bytes)));
            assert!(!keys.manifest_holds(bytes, &keys.extent(bytes).0));
            assert!(keys.extent_holds(bytes, &keys.extent(bytes)));
        }
    }
    let count = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), count);
}

#[test]
fn another_sites_key_opens_nothing() {
    let place = Place::new();
    place.put("a", b"1");
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    write(
        &store_job,
        id(1, 1),
        &LinuxDisk,
        &place.folder("program"),
        None,
    )
    .unwrap();
    store_job.commit(id(1, 1)).unwrap();
    let other = SiteKey::derive(b"another key");
    let (store, found) = Store::open(LinuxDisk, place.folder("store"), other).unwrap();
    assert_eq!(found.removed, Vec::<String>::new());
    assert!(
        found.faults[0].contains("the note does not hold"),
        "{found:?}"
    );
    assert!(store.existing(&job(7)).is_err());
    // Nothing was touched.
    let (store, found) = place.open();
    assert_eq!(found, Default::default());
    assert!(store.existing(&job(7)).unwrap().manifest(id(1, 1)).is_ok());
}

#[test]
fn a_store_that_others_can_enter_is_not_opened() {
    let place = Place::new();
    mode(&place.path("store"), 0o710);
    let opened = Store::open(LinuxDisk, place.folder("store"), key());
    let said = opened.err().unwrap().to_string();
    assert!(
        said.contains("mode 0710") && said.contains("mode 0700"),
        "{said}"
    );
}

#[test]
fn a_job_id_that_comes_again_for_another_user_is_refused() {
    let place = Place::new();
    let (store, _) = place.open();
    store.job(&job(7), 1000).unwrap();
    let said = store.job(&job(7), 1001).err().unwrap().to_string();
    assert!(said.contains("it is there as one of user 1000"), "{said}");
    assert_eq!(store.existing(&job(7)).unwrap().uid(), 1000);
}
