//! How busy instances are, as NVIDIA's library tells it of the time since the poll before.

use std::collections::BTreeMap;

use gpuos_core::wire::{MigLoad, Percent};
use gpuos_host::hardware::nvml::{self, Error, GpuLibrary, Load};
use gpuos_model::gpu_index::NvmlIndex;

/// What is told of each instance of a GPU, by its id, or why nothing is known of the GPU.
pub type Loads = Result<BTreeMap<u32, MigLoad>, String>;

/// What is said of a GPU without such counters.
const NO_GPM: &str = "this GPU or its driver has no GPM counters: Hopper and later have; DCGM's profiling metrics tell it";

/// Asks of all instances.
pub(super) fn measure(nvml: &dyn GpuLibrary, gpu: NvmlIndex) -> Loads {
    let told = nvml.mig_load(gpu.into()).map_err(|e| reason(&e))?;
    let each = told.into_iter();
    Ok(each.map(|(gi, load)| (gi, of_instance(load))).collect())
}

/// Why nothing is known of a load.
pub fn unknown(why: &str) -> MigLoad {
    MigLoad {
        load_unknown: Some(why.into()),
        ..MigLoad::default()
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::NotSupported => NO_GPM.into(),
        other => other.to_string(),
    }
}

fn of_instance(told: nvml::Answer<Option<Load>>) -> MigLoad {
    let load = match told {
        Ok(Some(load)) => load,
        Ok(None) => return unknown("the first poll of it: the next tells"),
        Err(error) => return unknown(&reason(&error)),
    };
    let mut all = MigLoad::default();
    let mut known = |share: nvml::Answer<f64>| match share {
        Ok(share) => Some(Percent::of_ratio(share)),
        Err(error) => {
            all.load_unknown = Some(reason(&error));
            None
        }
    };
    let (sm_percent, bandwidth_percent) = (known(load.sm), known(load.memory));
    MigLoad {
        sm_percent,
        bandwidth_percent,
        ..all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_has_a_reason_and_no_figure() {
        let half = Percent::of_ratio(0.5);
        let full = of_instance(Ok(Some(Load {
            sm: Ok(0.5),
            memory: Ok(0.0),
        })));
        assert_eq!((full.sm_percent, full.load_unknown), (Some(half), None));
        assert_eq!(full.bandwidth_percent, Some(Percent::of_ratio(0.0)));
        let part = of_instance(Ok(Some(Load {
            sm: Ok(0.5),
            memory: Err(Error::Timeout),
        })));
        assert_eq!(
            (part.sm_percent, part.bandwidth_percent),
            (Some(half), None)
        );
        assert_eq!(part.load_unknown, Some(Error::Timeout.to_string()));
        for nothing in [
            of_instance(Ok(None)),
            of_instance(Err(Error::Lost)),
            unknown(NO_GPM),
        ] {
            assert_eq!(
                (nothing.sm_percent, nothing.bandwidth_percent),
                (None, None)
            );
            assert!(nothing.load_unknown.is_some());
        }
    }
}
