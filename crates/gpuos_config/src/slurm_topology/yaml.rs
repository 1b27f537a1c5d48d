//! `topology.yaml`: a list of named topologies, each a tree, blocks, or of another kind.
use gpuos_model::reading::{ConfigError, MAX_FILE, Place};
use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::blocks::{Blocks, check_sizes};
use super::{Shape, Topologies, TopologyFile, Written, build_blocks, build_tree};

/// The deepest nesting: the format itself needs six.
const MAX_DEPTH: usize = 32;

const FORM: &str = "a list of topologies: - topology: NAME, then tree:, block: or flat:";

/// A YAML value with its place.
struct Yaml {
    place: Place,
    value: Value,
}

enum Value {
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
    Null,
}

impl Yaml {
    fn get(&self, key: &str) -> Option<&Yaml> {
        match &self.value {
            Value::Map(pairs) => pairs.iter().find(|(name, _)| name == key).map(|(_, v)| v),
            _ => None,
        }
    }

    fn is_true(&self) -> bool {
        matches!(&self.value, Value::Text(text)
            if ["true", "yes", "on"].iter().any(|word| text.eq_ignore_ascii_case(word)))
    }
}

/// Reads the text of a topology.yaml; `file` is what errors call it. The first topology with `cluster_default: true` comes first, else they
/// stay in their order.
///
/// # Errors
/// Broken YAML, anchors and aliases (Slurm's files have none, and they can blow up), a file
/// of another form, and what [`super::parse_topology_conf`] refuses.
pub fn parse_topology_yaml(text: &str, file: &str) -> Result<Topologies, ConfigError> {
    if text.len() > MAX_FILE {
        let message = format!("the file is larger than {MAX_FILE} bytes");
        return Err(Place::default().error(file, message));
    }
    let root = Loader::new(text, file).load()?;
    let topologies = match &root.value {
        Value::List(list) if !list.is_empty() => list.iter().collect(),
        // One alone needs no list.
        Value::Map(_) => vec![&root],
        _ => return Err(root.place.error(file, format!("the file is not {FORM}"))),
    };
    let is_default = |one: &&Yaml| one.get("cluster_default").is_some_and(Yaml::is_true);
    let (first, others): (Vec<_>, Vec<_>) = topologies.into_iter().partition(is_default);
    let all = first.into_iter().chain(others);
    let all = all.map(|one| topology(one, file));
    Ok(Topologies::new(all.collect::<Result<_, _>>()?))
}

fn topology(one: &Yaml, file: &str) -> Result<TopologyFile, ConfigError> {
    let name = match one.get("topology") {
        Some(name) => text_of(name, "topology", file)?,
        None => {
            let message = "a topology has no name; write - topology: NAME";
            return Err(one.place.error(file, message));
        }
    };
    let shape = if let Some(tree) = one.get("tree") {
        let switches = entries(tree, "switches", ["switch", "nodes", "children"], file)?;
        Shape::Tree(build_tree(switches)?)
    } else if let Some(block) = one.get("block") {
        let blocks = entries(block, "blocks", ["block", "nodes", ""], file)?;
        Shape::Block(Blocks {
            blocks: build_blocks(blocks)?,
            sizes: sizes(block, file)?,
        })
    } else {
        Shape::Other
    };
    Ok(TopologyFile { name, shape })
}

/// The `block_sizes` of a block topology.
fn sizes(block: &Yaml, file: &str) -> Result<Vec<u32>, ConfigError> {
    let Some(given) = block.get("block_sizes") else {
        return Ok(Vec::new());
    };
    let error = |message: String| given.place.error(file, message);
    let list = match &given.value {
        Value::List(list) => list.iter().map(|one| &one.value).collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    };
    let number = |value: &Value| match value {
        Value::Text(text) => text.trim().parse().ok(),
        _ => None,
    };
    let sizes: Option<Vec<u32>> = list.into_iter().map(number).collect();
    let message = "block_sizes are no numbers of nodes; write a list such as - 8";
    let sizes = sizes.ok_or_else(|| error(message.into()))?;
    check_sizes(&sizes).map_err(error)?;
    Ok(sizes)
}

/// The switches or blocks of a topology; `keys` are name, nodes and children.
fn entries(
    topology: &Yaml,
    list: &str,
    keys: [&str; 3],
    file: &str,
) -> Result<Vec<Written>, ConfigError> {
    let [name, nodes, children] = keys;
    let list: Vec<&Yaml> = match topology.get(list).map(|found| (found, &found.value)) {
        Some((_, Value::List(list))) => list.iter().collect(),
        // One alone needs no list.
        Some((one, Value::Map(_))) => vec![one],
        _ => {
            let message = format!("{list} is missing or no list; write {list}: and - {name}: NAME");
            return Err(topology.place.error(file, message));
        }
    };
    let hosts = |entry: &Yaml, key: &str| match entry.get(key) {
        Some(hosts) => text_of(hosts, key, file),
        None => Ok(String::new()),
    };
    let entry = |entry: &Yaml| {
        let named = entry.get(name).ok_or_else(|| {
            let message = format!("an entry has no {name}; write - {name}: NAME");
            entry.place.error(file, message)
        })?;
        Ok(Written {
            name: text_of(named, name, file)?,
            nodes: hosts(entry, nodes)?,
            children: hosts(entry, children)?,
            place: entry.place,
            file: file.to_owned(),
        })
    };
    list.into_iter().map(entry).collect()
}

/// A text, or a list of texts joined with commas, as Slurm takes hostlists.
fn text_of(value: &Yaml, key: &str, file: &str) -> Result<String, ConfigError> {
    match &value.value {
        Value::Text(text) => Ok(text.clone()),
        Value::List(list) => {
            let each = list.iter().map(|one| text_of(one, key, file));
            Ok(each.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        _ => {
            let message = format!("{key} has no value; write a name or a hostlist");
            Err(value.place.error(file, message))
        }
    }
}

/// Builds values from the parser's events.
struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    file: &'a str,
}

impl<'a> Loader<'a> {
    fn new(text: &'a str, file: &'a str) -> Loader<'a> {
        Loader {
            parser: Parser::new_from_str(text),
            file,
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Place), ConfigError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(span))),
            Some(Err(error)) => {
                let at = *error.marker();
                let message = format!("this is no YAML: {}", error.info());
                Err(place(Span::empty(at)).error(self.file, message))
            }
            None => {
                let message = "the file ends too early";
                Err(Place::default().error(self.file, message))
            }
        }
    }

    /// The first document; a file without one is a null.
    fn load(mut self) -> Result<Yaml, ConfigError> {
        loop {
            let (event, place) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
                Event::StreamEnd | Event::DocumentEnd => {
                    return Ok(Yaml {
                        place,
                        value: Value::Null,
                    });
                }
                event => return self.value(event, place, 0),
            }
        }
    }

    fn value(&mut self, event: Event, place: Place, depth: usize) -> Result<Yaml, ConfigError> {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} values inside each other");
            return Err(place.error(self.file, message));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => match (&*text, style) {
                ("" | "~" | "null", ScalarStyle::Plain) => Value::Null,
                _ => Value::Text(text.into_owned()),
            },
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Value::List(list),
                        (event, place) => list.push(self.value(event, place, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut pairs = Vec::new();
                loop {
                    let (event, place) = self.next()?;
                    if matches!(event, Event::MappingEnd) {
                        break Value::Map(pairs);
                    }
                    let key = self.value(event, place, depth + 1)?;
                    let Value::Text(key) = key.value else {
                        return Err(key
                            .place
                            .error(self.file, format!("a key is no text; write {FORM}")));
                    };
                    let (event, place) = self.next()?;
                    pairs.push((key, self.value(event, place, depth + 1)?));
                }
            }
            Event::Alias(_) => {
                let message = "aliases (*name) are not read here; write the value itself";
                return Err(place.error(self.file, message));
            }
            _ => return Err(place.error(self.file, format!("the file is not {FORM}"))),
        };
        Ok(Yaml { place, value })
    }
}

fn place(span: Span) -> Place {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Place {
        line: number(span.start.line()),
        column: number(span.start.col()).saturating_add(1),
    }
}
