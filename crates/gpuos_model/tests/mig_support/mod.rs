//! The boards of `crates/gpuos_sim/data/mig/boards.json`, and odd ones of no maker.
#![allow(dead_code, reason = "each test uses its part")]

use gpuos_model::mig::{Geometry, Profile};

const BOARDS: &str = include_str!("../../../gpuos_sim/data/mig/boards.json");

/// All boards of the file, by name.
pub fn boards() -> Vec<(String, Geometry)> {
    let all: Vec<serde_json::Value> = serde_json::from_str(BOARDS).expect("boards.json is JSON");
    let board = |board: serde_json::Value| {
        let name = board["name"]
            .as_str()
            .expect("a board has a name")
            .to_string();
        let profiles = board["profiles"].clone();
        (
            name,
            serde_json::from_value(profiles).expect("it has sound profiles"),
        )
    };
    all.into_iter().map(board).collect()
}

/// One board of the file.
pub fn board(name: &str) -> Geometry {
    let mut all = boards().into_iter();
    let found = all.find(|(known, _)| known == name);
    found
        .unwrap_or_else(|| panic!("{name} is in boards.json"))
        .1
}

/// A profile without engines.
pub fn profile(id: u32, name: &str, slices: [u8; 2], most: u8, starts: &[u8]) -> Profile {
    Profile {
        id,
        name: name.into(),
        compute: slices[0],
        memory_mib: 1000 * u64::from(slices[1]),
        most,
        size: slices[1],
        starts: starts.into(),
        engines: [0; 4],
    }
}

/// The number of the profile with this name.
pub fn numbered(geometry: &Geometry, name: &str) -> usize {
    geometry
        .by_name(name)
        .unwrap_or_else(|| panic!("{name} is a profile"))
}
