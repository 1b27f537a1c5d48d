//! `topology.conf`: lines of `Key=Value` pairs, keys in any case, `#` comments, `\` at the end
//! of a line continues it.
use gpuos_model::hostlist::shorten;
use gpuos_model::reading::{ConfigError, MAX_FILE, Place};

use super::{Shape, TopologyFile, Written, build_blocks, build_tree};

/// Reads the text of a topology.conf; `file` is what errors call it.
///
/// # Errors
/// A line that is no list of `Key=Value`, a name described twice, a child that is not
/// described, a hostlist that is none, switches in a circle, trees and blocks mixed.
pub fn parse_topology_conf(text: &str, file: &str) -> Result<TopologyFile, ConfigError> {
    if text.len() > MAX_FILE {
        let message = format!("the file is larger than {MAX_FILE} bytes");
        return Err(Place::default().error(file, message));
    }
    let (mut switches, mut blocks) = (Vec::new(), Vec::new());
    for (line, text) in logical_lines(text) {
        let place = Place { line, column: 1 };
        let error = |message: String| place.error(file, message);
        let pairs = pairs(&text).map_err(error)?;
        let value = |key: &str| {
            let mut found = pairs
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case(key));
            found.next_back().map(|(_, value)| value.clone())
        };
        let Some((first, _)) = pairs.first() else {
            continue;
        };
        let written = |name: String| Written {
            name,
            nodes: value("Nodes").unwrap_or_default(),
            children: value("Switches").unwrap_or_default(),
            place,
        };
        // As in Slurm, keys that this reader has no use for (LinkSpeed) are left alone.
        match first.to_ascii_lowercase().as_str() {
            "switchname" => switches.extend(value("SwitchName").map(written)),
            "blockname" => blocks.extend(value("BlockName").map(written)),
            "blocksizes" | "ringname" => {}
            "include" => {
                let message = "Include is not followed here; put the lines into this file";
                return Err(error(message.into()));
            }
            _ => {
                let message = format!(
                    "'{}' is not understood; a line starts with SwitchName=, BlockName=, \
                     BlockSizes= or RingName=",
                    shorten(first)
                );
                return Err(error(message));
            }
        }
    }
    let shape = match (switches.is_empty(), blocks.is_empty()) {
        (false, false) => {
            let message = "the file has switches and blocks; a topology is one or the other";
            return Err(blocks[0].place.error(file, message));
        }
        (false, true) => Shape::Tree(build_tree(switches, file)?),
        (true, false) => Shape::Block(build_blocks(blocks, file)?),
        (true, true) => Shape::Other,
    };
    Ok(TopologyFile {
        name: String::new(),
        shape,
    })
}

/// Lines without comments, continued lines joined, with the number of their first line.
fn logical_lines(text: &str) -> Vec<(u32, String)> {
    let mut lines: Vec<(u32, String)> = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default().trim_end();
        let (code, continues) = match code.strip_suffix('\\') {
            Some(code) => (code, true),
            None => (code, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some((_, last)) => last.push_str(code),
            None => lines.push((number as u32 + 1, code.to_string())),
        }
        open = continues;
    }
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
}

/// Cuts a line into `Key=Value`; values may stand in double quotes, and blanks may surround
/// the equals sign.
fn pairs(line: &str) -> Result<Vec<(String, String)>, String> {
    let form = "write Key=Value, for example SwitchName=l1 Nodes=n[1-4]";
    let mut pairs = Vec::new();
    let mut rest = line.trim();
    let word = rest.split(char::is_whitespace).next().unwrap_or_default();
    if word.eq_ignore_ascii_case("include") {
        return Ok(vec![("include".into(), String::new())]);
    }
    while !rest.is_empty() {
        let Some((key, after)) = rest.split_once('=') else {
            return Err(format!("'{}' is not understood; {form}", shorten(rest)));
        };
        let key = key.trim_end();
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(format!("'{}' is no key; {form}", shorten(key)));
        }
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted
                .split_once('"')
                .ok_or_else(|| format!("the value of {key} has no closing quote; {form}"))?,
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        if value.is_empty() {
            return Err(format!("{key} has no value; {form}"));
        }
        pairs.push((key.to_string(), value.to_string()));
        rest = next.trim_start();
    }
    Ok(pairs)
}
