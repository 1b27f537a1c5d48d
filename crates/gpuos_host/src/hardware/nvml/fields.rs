//! Numbers of field values, which are not the same for all drivers.

/// Which numbers a driver uses for the fields 251 to 273.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Numbering {
    /// Drivers before 580.82: those of the bindings.
    First,
    /// Drivers from 580.82 (CUDA 13.0 Update 1) on, whose header moved the reasons for lower clocks behind the
    /// fields of power smoothing (NVML's release notes, "known issues").
    Moved,
}

impl Numbering {
    /// By the version of the driver, for example `580.95.05`. An unreadable one counts as new.
    pub(super) fn of_driver(version: &str) -> Numbering {
        let mut parts = version.split('.').map(str::parse::<u32>);
        let major = parts.next().and_then(Result::ok).unwrap_or(u32::MAX);
        let minor = parts.next().and_then(Result::ok).unwrap_or(0);
        match (major, minor) < (580, 82) {
            true => Numbering::First,
            false => Numbering::Moved,
        }
    }

    /// The driver's number of a field that the bindings call `field`.
    pub(super) fn number(self, field: u32) -> u32 {
        match (self, field) {
            (Numbering::First, _) => field,
            (Numbering::Moved, 251..=255) => field + 18,
            (Numbering::Moved, 256..=273) => field - 5,
            (Numbering::Moved, _) => field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_moved_with_580_82() {
        for (version, hardware_thermal) in [
            ("535.104.05", 252),
            ("580.65.06", 252),
            ("580.82.07", 270),
            ("580.126.09", 270),
            ("590.10", 270),
            ("not a version", 270),
        ] {
            let numbering = Numbering::of_driver(version);
            assert_eq!(numbering.number(252), hardware_thermal, "{version}");
            assert_eq!(numbering.number(230), 230);
        }
        // Power smoothing fills the place that became free, one to one.
        let moved: std::collections::BTreeSet<u32> = (251..=273)
            .map(|field| Numbering::Moved.number(field))
            .collect();
        assert_eq!(moved.len(), 23);
        assert_eq!((moved.first(), moved.last()), (Some(&251), Some(&273)));
    }
}
