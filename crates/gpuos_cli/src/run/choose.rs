//! On which of the job's nodes its program runs.

/// A node of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Slurm's name.
    pub name: String,
    /// Why no program can run there; `None`: one can.
    pub lost: Option<String>,
    /// Whether it is about to be taken out of service: others are taken first.
    pub drains: bool,
    /// The number of the newest checkpoint of which it has a part.
    pub has: Option<u32>,
}

/// The nodes to run on, in the job's order: those that the program had before, then those that have parts of the newest checkpoint, then
/// others; those that drain only where there are no more. `None`: there are too few.
pub fn choose(nodes: &[Node], before: &[String], count: usize) -> Option<Vec<String>> {
    let usable = nodes.iter().filter(|node| node.lost.is_none());
    let mut usable: Vec<(usize, &Node)> = usable.enumerate().collect();
    usable.sort_by_key(|(at, node)| {
        let was = before.contains(&node.name);
        (node.drains, !was, std::cmp::Reverse(node.has), *at)
    });
    let mut taken: Vec<(usize, &Node)> = usable.into_iter().take(count).collect();
    if taken.len() < count {
        return None;
    }
    taken.sort_by_key(|(at, _)| *at);
    Some(
        taken
            .into_iter()
            .map(|(_, node)| node.name.clone())
            .collect(),
    )
}

/// The same where there are fewer than `count`: as many as there are, if these are `least`.
pub fn fewer(
    nodes: &[Node],
    before: &[String],
    count: usize,
    least: Option<usize>,
) -> Option<Vec<String>> {
    let usable = nodes.iter().filter(|node| node.lost.is_none()).count();
    let left = usable.min(count);
    least
        .filter(|least| (*least).max(1) <= left)
        .and_then(|_| choose(nodes, before, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node {
            name: name.into(),
            lost: None,
            drains: false,
            has: None,
        }
    }

    fn lost(name: &str) -> Node {
        Node {
            lost: Some("it is DOWN".into()),
            ..node(name)
        }
    }

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn the_program_keeps_its_nodes_and_gets_spares_for_those_that_are_lost() {
        let all = |nodes: [Node; 5], before: &str| {
            choose(&nodes, &names(before), 4).map(|chosen| chosen.join(" "))
        };
        let five = || ["a", "b", "c", "d", "e"].map(node);
        assert_eq!(all(five(), "").unwrap(), "a b c d");
        assert_eq!(all(five(), "a c d e").unwrap(), "a c d e");
        let without_b = || {
            let [a, _, c, d, e] = five();
            [a, lost("b"), c, d, e]
        };
        assert_eq!(all(without_b(), "a b c d").unwrap(), "a c d e");
        let [a, b, _, d, e] = without_b();
        assert_eq!(all([a, b, lost("c"), d, e], "a b c d"), None);
    }

    #[test]
    fn it_goes_on_with_fewer_where_that_is_wanted() {
        let [a, b, c] = ["a", "b", "c"].map(node);
        let nodes = [a, lost("b"), c.clone()];
        let before = names("a b c");
        let fewer = |least| fewer(&nodes, &before, 3, least);
        assert_eq!(fewer(None), None);
        assert_eq!(fewer(Some(3)), None);
        assert_eq!(fewer(Some(2)).unwrap(), names("a c"));
        assert_eq!(fewer(Some(1)).unwrap(), names("a c"), "all that are left");
        let none = [lost("a"), b.clone(), c];
        let fewer = super::fewer(&none, &names("b"), 1, Some(1));
        assert_eq!(fewer.unwrap(), names("b"), "never more than were wanted");
        assert_eq!(super::fewer(&[lost("a")], &[], 1, Some(0)), None);
    }

    #[test]
    fn nodes_with_data_come_before_those_without_and_those_that_drain_last() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(node);
        let has = |node: Node, number| Node {
            has: Some(number),
            ..node
        };
        let drains = |node: Node| Node {
            drains: true,
            ..node
        };
        let nodes = [
            a.clone(),
            has(b.clone(), 3),
            has(c.clone(), 7),
            has(d.clone(), 7),
        ];
        assert_eq!(choose(&nodes, &[], 2).unwrap(), names("c d"));
        assert_eq!(choose(&nodes, &[], 3).unwrap(), names("b c d"));
        let nodes = [drains(has(a, 7)), b, c, d];
        assert_eq!(choose(&nodes, &names("a b"), 2).unwrap(), names("b c"));
        assert_eq!(choose(&nodes, &names("a b"), 4).unwrap(), names("a b c d"));
    }
}
