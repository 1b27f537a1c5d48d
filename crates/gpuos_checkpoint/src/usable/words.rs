//! Lists of nodes in sentences.
use crate::ids::NodeIndex;

/// So many nodes are named, the rest is counted.
const NAMED: usize = 8;

/// "node 3", "nodes 3, 4 and 5", or "nodes 1, 2, 3, 4, 5, 6, 7, 8 and 12 more".
pub(crate) fn nodes_text(nodes: &[NodeIndex]) -> String {
    match nodes {
        [] => "no node".into(),
        [one] => format!("node {one}"),
        _ => {
            let named = nodes.len().min(NAMED);
            let (first, rest) = match nodes.len() > NAMED {
                true => (named, format!("{} more", nodes.len() - named)),
                false => (named - 1, nodes[named - 1].to_string()),
            };
            let first: Vec<String> = nodes[..first].iter().map(NodeIndex::to_string).collect();
            format!("nodes {} and {rest}", first.join(", "))
        }
    }
}
