//! `topology.conf`, in the form of all of Slurm's files.
use gpuos_model::hostlist::shorten;
use gpuos_model::reading::{ConfigError, MAX_FILE, Place};

use super::blocks::{Blocks, check_sizes};
use super::{Shape, TopologyFile, Written, build_blocks, build_tree};
use crate::slurm_conf::{ConfLine, Read, conf_lines};

const FILE: &str = "topology.conf";

const FORM: &str = "a line starts with SwitchName=, BlockName=, BlockSizes=, RingName= or Include";

/// Reads topology.conf with the files that it includes; `None`: there is none.
///
/// # Errors
/// As [`parse_topology_conf`]; a file cannot be read.
pub(super) fn read_topology_conf(read: Read<'_>) -> Result<Option<TopologyFile>, ConfigError> {
    parse(FILE, read)
}

/// Reads the text of a topology.conf; `file` is what errors call it.
///
/// # Errors
/// A line that Slurm does not take, a name described twice, a child that is not described, a hostlist that is none, switches in a circle,
/// trees and blocks mixed.
pub fn parse_topology_conf(text: &str, file: &str) -> Result<TopologyFile, ConfigError> {
    if text.len() > MAX_FILE {
        let message = format!("the file is larger than {MAX_FILE} bytes");
        return Err(Place::default().error(file, message));
    }
    let found = parse(file, &|name| Ok((name == file).then(|| text.to_owned())));
    found.map(Option::unwrap_or_default)
}

fn parse(file: &str, read: Read<'_>) -> Result<Option<TopologyFile>, ConfigError> {
    let found = conf_lines(file, read).map_err(|why| Place::default().error(file, why))?;
    let Some((lines, faults)) = found else {
        return Ok(None);
    };
    if let Some(fault) = faults.into_iter().next() {
        let message = format!(
            "{}; write Key=Value, for example SwitchName=l1 Nodes=n[1-4]",
            fault.message
        );
        return Err(place(fault.line).error(&fault.file, message));
    }
    let (mut switches, mut blocks, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for line in &lines {
        let error = |message: String| place(line.line).error(&line.file, message);
        let Some((key, name)) = line.pairs.first() else {
            continue;
        };
        let wanted: &[&str] = match key.as_str() {
            "switchname" => {
                switches.push(written(name, line));
                &["linkspeed", "nodes", "switches"]
            }
            "blockname" => {
                blocks.push(written(name, line));
                &["nodes"]
            }
            "blocksizes" => {
                sizes = block_sizes(name).map_err(error)?;
                &[]
            }
            // Torus and ring give no level.
            "ringname" => continue,
            _ => {
                return Err(error(format!(
                    "'{}' is not understood; {FORM}",
                    shorten(key)
                )));
            }
        };
        let strange = line.pairs[1..]
            .iter()
            .find(|(key, _)| !wanted.contains(&key.as_str()));
        if let Some((strange, _)) = strange {
            let message = format!(
                "'{}' does not belong into a line with {key}",
                shorten(strange)
            );
            return Err(error(message));
        }
    }
    let shape = match (switches.is_empty(), blocks.first()) {
        (false, Some(block)) => {
            let message = "the file has switches and blocks; a topology is one or the other";
            return Err(block.place.error(&block.file, message));
        }
        (false, None) => Shape::Tree(build_tree(switches)?),
        (true, Some(_)) => Shape::Block(Blocks {
            blocks: build_blocks(blocks)?,
            sizes,
        }),
        (true, None) => Shape::Other,
    };
    // The name that Slurm has for it.
    let name = "default".into();
    Ok(Some(TopologyFile { name, shape }))
}

fn place(line: usize) -> Place {
    Place {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: 1,
    }
}

fn written(name: &str, line: &ConfLine) -> Written {
    let text = |key: &str| line.get(key).unwrap_or_default().to_owned();
    Written {
        name: name.to_owned(),
        nodes: text("nodes"),
        children: text("switches"),
        place: place(line.line),
        file: line.file.clone(),
    }
}

/// `8,16,64`.
fn block_sizes(list: &str) -> Result<Vec<u32>, String> {
    let sizes: Option<Vec<u32>> = list
        .split(',')
        .map(|size| size.trim().parse().ok())
        .collect();
    let sizes = sizes.ok_or_else(|| {
        format!(
            "'{}' are no block sizes; write for example BlockSizes=8,16,64",
            shorten(list)
        )
    })?;
    check_sizes(&sizes).map(|()| sizes)
}
