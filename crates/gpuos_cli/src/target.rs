//! A node, or GPUs of it, as an administrator names them: `n3:5,mig4`.

use gpuos_core::health::number;
use gpuos_model::gpuset::MAX_GPUS;

use crate::remote;

/// A node, and GPUs of it; none: the whole node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Slurm's name.
    pub node: String,
    /// GRES indices, and GPUs of the node's pool as in [`gpuos_core::health::number`].
    pub gpus: Vec<u8>,
}

impl Target {
    /// Reads `n3`, `n3:5`, `n3:gpu5`, `n3:0-3,6`, and of the pool `n3:mig4`, `n3:mig4-mig7`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Target, String> {
        let (node, list) = match text.split_once(':') {
            Some((node, list)) => (node, Some(list)),
            None => (text, None),
        };
        if !remote::is_node(node) {
            return Err("write NODE or NODE:GPU, for example n3:5".into());
        }
        let mut gpus = Vec::new();
        for part in list.into_iter().flat_map(|list| list.split(',')) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (index(low)?, index(high)?);
            if number::is_of_pool(low) != number::is_of_pool(high) {
                return Err(format!(
                    "{part} is partly in the pool: write mig before both numbers, or before none"
                ));
            }
            if low > high {
                return Err(format!("{part} ends before it begins"));
            }
            gpus.extend(low..=high);
        }
        gpus.sort_unstable();
        gpus.dedup();
        Ok(Target {
            node: node.into(),
            gpus,
        })
    }
}

fn index(text: &str) -> Result<u8, String> {
    let plain = text.strip_prefix("gpu");
    let own = |rest: &&str| !rest.starts_with("mig");
    number::parse(plain.filter(own).unwrap_or(text)).ok_or_else(|| {
        format!(
            "{text:?} is no GPU: write its index in gres.conf, 0 to {}, or mig and NVML's index for one of a [[mig.pool]]",
            MAX_GPUS - 1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let read = |text: &str| Target::parse(text).map(|target| (target.node, target.gpus));
        assert_eq!(read("n3"), Ok(("n3".into(), vec![])));
        assert_eq!(read("n3:gpu5"), Ok(("n3".into(), vec![5])));
        assert_eq!(
            read("gpu-a.x:6,0-2"),
            Ok(("gpu-a.x".into(), vec![0, 1, 2, 6]))
        );
        let mig = |nvml: u8| number::of_pool(nvml).unwrap();
        assert_eq!(
            read("n3:mig4-mig5,5"),
            Ok(("n3".into(), vec![5, mig(4), mig(5)]))
        );
        for bad in [
            "n3:mig",
            "n3:gpumig4",
            "n3:4-mig5",
            "n3:mig4-5",
            "n3:mig64",
            "",
            ":5",
            "n3:",
            "n3:x",
            "n3:5-",
            "n3:3-1",
            "n3:64",
            "n3:+5",
            "-n",
            "n 3",
            "n[1-2]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
