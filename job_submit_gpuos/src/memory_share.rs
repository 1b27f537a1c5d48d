//! What `[[memory-share]]` of gpuos.toml lets a job have of a node's host memory, at submission: what can never be had is refused with a
//! sentence. Whose a job is slurmctld decides later, and gpuosd holds it to that; here only what the job names itself is known.

use gpuos_config::gpuos_toml::MemoryShare;
use gpuos_config::options::MemoryOption;

use crate::forbid::Place;
use crate::memory::Inventory;
use crate::messages::refused;
use crate::refusal::Refusal;
use crate::shape::Shape;

/// Checks a job by what it names.
///
/// # Errors
/// It needs more of a node than the jobs of its account, partition or QOS get together.
pub fn check(
    inventory: &Inventory,
    (asked, place): (&MemoryOption, &Place),
    shape: &Shape,
) -> Result<(), Refusal> {
    let Some(share) = share_of(inventory.shares(), place) else {
        return Ok(());
    };
    let (Some(most), Some(needed)) = (share.at_most_mib, inventory.least_of_node(asked, shape))
    else {
        return Ok(());
    };
    match needed <= most {
        true => Ok(()),
        false => Err(Refusal::impossible(refused::memory_beyond_share(
            asked,
            needed,
            share.whose(),
            most,
        ))),
    }
}

/// The share that will count for a job; `None`: none, or what it names does not decide it.
fn share_of<'a>(shares: &'a [MemoryShare], place: &Place) -> Option<&'a MemoryShare> {
    for share in shares {
        if is_of(share, place)? {
            return Some(share);
        }
    }
    None
}

/// Whether a share is of a job; `None`: that depends on what the job does not name.
fn is_of(share: &MemoryShare, place: &Place) -> Option<bool> {
    let same = |wanted: &Option<String>, named: &str| match (wanted, named) {
        (None, _) => Some(true),
        (Some(_), "") => None,
        (Some(wanted), named) => Some(wanted.eq_ignore_ascii_case(named)),
    };
    let partition = share.partition.as_ref().map_or(Some(true), |wanted| {
        let mut named = place.partitions().map(|name| name == wanted);
        let first = named.next()?;
        // Of several one will be the job's.
        named.all(|other| other == first).then_some(first)
    });
    let parts = [
        same(&share.account, place.account()),
        partition,
        same(&share.qos, place.qos()),
    ];
    match parts.contains(&Some(false)) {
        true => Some(false),
        false => parts
            .into_iter()
            .collect::<Option<Vec<bool>>>()
            .map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::options::parse_memory;
    use gpuos_config::site::Site;

    use super::*;

    const SHARES: &str = "[[memory-share]]\naccount = \"students\"\nqos = \"long\"\n\
        [[memory-share]]\naccount = \"students\"\nat-most = \"60G\"\n\
        [[memory-share]]\npartition = \"gpu\"\nat-most = \"30G\"\n";
    const GPUOS: &str = "[memory]\noversubscribe = true\nreserve-mib = 0\n\
        [[nodes]]\nmatch = \"h1\"\ntype = \"dgx-h100\"\n";

    fn inventory() -> Inventory {
        let site = Site::read(None, &|name| {
            Ok(match name {
                "slurm.conf" => Some(
                    "NodeName=h1 Gres=gpu:h100:8 RealMemory=2000000\nPartitionName=gpu Nodes=ALL\n"
                        .into(),
                ),
                "gpuos.toml" => Some(format!("{GPUOS}{SHARES}")),
                _ => None,
            })
        });
        Inventory::of(&site.unwrap(), true)
    }

    fn told(size: &str, account: &str, partitions: &str, qos: &str, per_node: &str) -> String {
        let asked = parse_memory(size).unwrap();
        let place = Place::new(account, partitions, qos);
        let shape = Shape {
            per_node: Some(per_node.into()),
            ..Shape::default()
        };
        match check(&inventory(), (&asked, &place), &shape) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.sentence,
        }
    }

    #[test]
    fn what_can_never_be_had_is_refused_and_what_is_not_known_is_not() {
        let one = "gres/gpu:h100:1";
        // 41,321 MiB of 122,880 have no room in a GPU.
        let why = told("120G", "students", "gpu", "normal", one);
        assert_eq!(why, "", "60 GiB are more");
        let why = told("120G", "students", "gpu", "normal", "gres/gpu:h100:2");
        assert!(
            why.contains("82642 MiB")
                && why.contains("account students")
                && why.contains("61440 MiB"),
            "{why}"
        );
        let why = told("120G", "staff", "gpu", "normal", one);
        assert!(why.contains("partition gpu"), "{why}");
        for (account, partitions, qos) in [
            // The first table has no bound.
            ("students", "gpu", "long"),
            // Its QOS or its account may be another one.
            ("", "gpu", "normal"),
            ("students", "gpu", ""),
            // It may come to run in the other one.
            ("staff", "gpu,cpu", "normal"),
            ("staff", "cpu", "normal"),
        ] {
            let why = told("300G", account, partitions, qos, one);
            assert_eq!(why, "", "{account} {partitions} {qos}");
        }
        // Within the GPU's own memory nothing of the host's is needed.
        assert_eq!(told("60G", "staff", "gpu", "normal", one), "");
    }
}
