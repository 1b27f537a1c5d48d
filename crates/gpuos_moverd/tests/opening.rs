//! Two daemons, and one store.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gpuos_moverd::opening;
use tempfile::TempDir;

#[test]
fn a_store_that_another_process_has_is_refused_and_left_as_it_is() {
    let base = TempDir::new().unwrap();
    let (store, jobs) = (base.path().join("store"), base.path().join("jobs"));
    let key = base.path().join("key");
    fs::write(&key, [7; 64]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    opening::store(&store, &jobs, &key, 0).unwrap();
    // What the first one has begun. Opening removes such things, as after a crash.
    let begun = store.join("12/owner.tmp");
    fs::create_dir(store.join("12")).unwrap();
    fs::write(&begun, "").unwrap();
    let refused = opening::store(&store, &jobs, &key, 0).err().unwrap();
    let said = refused.to_string();
    assert!(
        said.contains("another gpuos_mover has") && said.contains("--store"),
        "{said}"
    );
    assert!(begun.exists());
}
