//! A node, or GPUs of it, as an administrator names them: `n3:5,mig4`.

use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::MAX_GPUS;
use gpuos_model::node_gpu::NodeGpu;

use crate::remote;

/// A node, and GPUs of it; none: the whole node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Slurm's name.
    pub node: String,
    /// Its GPUs, those of GRES gpu first.
    pub gpus: Vec<NodeGpu>,
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
            if low.is_of_pool() != high.is_of_pool() {
                return Err(format!(
                    "{part} is partly in the pool: write mig before both numbers, or before none"
                ));
            }
            if low > high {
                return Err(format!("{part} ends before it begins"));
            }
            let all = every().filter(|gpu| (low..=high).contains(gpu));
            gpus.extend(all);
        }
        gpus.sort_unstable();
        gpus.dedup();
        Ok(Target {
            node: node.into(),
            gpus,
        })
    }
}

/// Every GPU that a node may have.
fn every() -> impl Iterator<Item = NodeGpu> {
    let gres = (0..MAX_GPUS).filter_map(GresGpu::new).map(NodeGpu::Gres);
    let pool = (0..MAX_GPUS).filter_map(NvmlIndex::new).map(NodeGpu::Pool);
    gres.chain(pool)
}

fn index(text: &str) -> Result<NodeGpu, String> {
    let plain = text.strip_prefix("gpu");
    let own = |rest: &&str| !rest.starts_with("mig");
    let name = plain.filter(own).unwrap_or(text);
    name.parse().map_err(|_| {
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
        let gres = |gpu: u8| NodeGpu::Gres(gpu.try_into().unwrap());
        assert_eq!(read("n3:gpu5"), Ok(("n3".into(), vec![gres(5)])));
        assert_eq!(
            read("gpu-a.x:6,0-2"),
            Ok(("gpu-a.x".into(), [0, 1, 2, 6].map(gres).to_vec()))
        );
        let mig = |nvml: u8| NodeGpu::Pool(nvml.try_into().unwrap());
        assert_eq!(
            read("n3:mig4-mig5,5"),
            Ok(("n3".into(), vec![gres(5), mig(4), mig(5)]))
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
