//! Two daemons, and one store.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_moverd::opening;
use tempfile::TempDir;

#[test]
fn a_store_that_another_process_has_is_refused_and_left_as_it_is() {
    let base = TempDir::new().unwrap();
    let (store, jobs) = (base.path().join("store"), base.path().join("jobs"));
    let key = base.path().join("key");
    fs::write(&key, [7; 64]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    let config = CheckpointConfig::default();
    opening::store(&store, &jobs, &key, &config).unwrap();
    // What the first one has begun. Opening removes such things, as after a crash.
    let begun = store.join("12/owner.tmp");
    fs::create_dir(store.join("12")).unwrap();
    fs::write(&begun, "").unwrap();
    let refused = opening::store(&store, &jobs, &key, &config).err().unwrap();
    let said = refused.to_string();
    assert!(
        said.contains("another gpuos_mover has") && said.contains("--store"),
        "{said}"
    );
    assert!(begun.exists());
}

#[test]
fn a_key_to_encrypt_with_that_others_can_read_ends_the_start() {
    let base = TempDir::new().unwrap();
    let (store, jobs) = (base.path().join("store"), base.path().join("jobs"));
    let file = |name: &str, mode| {
        let path = base.path().join(name);
        fs::write(&path, [name.len() as u8; 64]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let config = CheckpointConfig {
        encrypt: true,
        encrypt_keys: vec![file("encryption", 0o440)],
        ..CheckpointConfig::default()
    };
    let refused = opening::store(&store, &jobs, &file("key", 0o400), &config);
    let said = refused.err().unwrap().to_string();
    assert!(
        said.contains("read a key to encrypt checkpoints with from")
            && said.contains("mode 0440")
            && said.contains("mode 0400"),
        "{said}"
    );
}
