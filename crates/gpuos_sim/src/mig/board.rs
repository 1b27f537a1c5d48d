//! The boards that are simulated: `data/mig/boards.json`, with its origin in `data/mig/ORIGIN.md`.

use std::collections::BTreeMap;

use gpuos_model::mig::{Geometry, States};
use serde_json::Value;

const BOARDS: &str = include_str!("../../data/mig/boards.json");

/// A kind of GPU.
#[derive(Clone, Debug)]
pub struct Board {
    /// `h100-80gb`.
    pub name: String,
    /// How it can be divided.
    pub geometry: Geometry,
    /// All that can stand on it.
    pub states: States,
    /// By profile: its spots in the order in which the driver takes them when no placement is given.
    pub default_order: Vec<Vec<usize>>,
}

/// The names of all boards.
pub fn names() -> Vec<String> {
    let all = all().unwrap_or_default();
    all.iter()
        .filter_map(|board| Some(board["name"].as_str()?.to_string()))
        .collect()
}

/// The board with this name.
///
/// # Errors
/// There is none, with the names that there are.
pub fn board(name: &str) -> Result<Board, String> {
    let found = all()?.into_iter().find(|board| board["name"] == name);
    let board = found.ok_or_else(|| {
        format!(
            "there is no board {name}: write one of {}",
            names().join(", ")
        )
    })?;
    let geometry: Geometry =
        serde_json::from_value(board["profiles"].clone()).map_err(|e| format!("{name}: {e}"))?;
    let states = States::new(&geometry).map_err(|e| format!("{name}: {e}"))?;
    let orders: BTreeMap<String, Vec<u8>> = serde_json::from_value(board["default_order"].clone())
        .map_err(|e| format!("{name}: {e}"))?;
    let order = |(number, profile): (usize, &gpuos_model::mig::Profile)| {
        let starts = orders.get(&profile.name).unwrap_or(&profile.starts).iter();
        let spots: Vec<usize> = starts
            .filter_map(|&start| states.spot(number, start))
            .collect();
        match spots.len() == profile.starts.len() {
            true => Ok(spots),
            false => Err(format!(
                "{name}: the default order of {} lacks placements",
                profile.name
            )),
        }
    };
    let default_order = geometry.profiles().iter().enumerate().map(order);
    Ok(Board {
        name: name.into(),
        default_order: default_order.collect::<Result<_, String>>()?,
        geometry,
        states,
    })
}

fn all() -> Result<Vec<Value>, String> {
    serde_json::from_str(BOARDS).map_err(|e| format!("boards.json: {e}"))
}
