//! That a job came back to nodes which hold checkpoints of it, in words.
use super::note::Held;

/// `2 of its 3 nodes held checkpoints of it when it started: such nodes come first among equally good ones.`
pub fn held_sentence(held: Held) -> String {
    let Held { nodes, of } = held;
    let who = match (nodes, of) {
        (0, _) => {
            return "None of the nodes that held checkpoints of it when it started were taken: they had no room for it, or other places were \
                    better for the whole run."
                .into();
        }
        (1, 1) => "Its node".into(),
        (nodes, of) if nodes == of => format!("All {of} nodes"),
        (nodes, of) => format!("{nodes} of its {of} nodes"),
    };
    format!(
        "{who} held checkpoints of it when it started: such nodes come first among equally good ones."
    )
}
