//! What is done about foreign processes: `[isolation]` of gpuos.toml.

/// Accounts below this number are the system's own (`UID_MIN` of login.defs).
const FIRST_USER: u32 = 1000;
/// The kernel keeps so many bytes of a program's name.
const NAME: usize = 15;
/// NVIDIA's MPS: the control daemon and the server.
const MPS: &str = "nvidia-cuda-mps-control";

/// What is done about a process on a GPU that it does not own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Foreign {
    /// Nothing; nobody looks.
    Ignore,
    /// It is told.
    #[default]
    Warn,
    /// It is told and killed.
    Kill,
}

/// `[isolation]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What is done.
    pub foreign: Foreign,
    /// For how long something has to be so before it counts, in ms.
    pub grace_ms: u64,
    /// Users whose processes outside of jobs may use any GPU.
    pub exempt_uids: Vec<u32>,
    /// Programs of the system that may, outside of jobs.
    pub exempt_programs: Vec<String>,
    /// Whether processes of root are killed too.
    pub kill_root: bool,
    /// Whether the kernel is asked what steps may open.
    pub devices: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            foreign: Foreign::default(),
            grace_ms: 10_000,
            exempt_uids: Vec::new(),
            exempt_programs: [
                "nvidia-persistenced",
                "nv-hostengine",
                "dcgm-exporter",
                "nvidia-cuda-mps-control",
                "nvidia-cuda-mps-server",
                "Xorg",
            ]
            .map(String::from)
            .into(),
            kill_root: false,
            devices: true,
        }
    }
}

impl Policy {
    /// Whether a process outside of jobs may use any GPU. A name counts for accounts of the system only: anybody can
    /// call his program so.
    pub(super) fn exempts(&self, uid: u32, program: &str) -> bool {
        let named = || {
            self.exempt_programs
                .iter()
                .any(|known| same(known, program))
        };
        self.exempt_uids.contains(&uid) || uid < FIRST_USER && named()
    }
}

/// Whether the kernel's name of a program can be that of `known`.
fn same(known: &str, program: &str) -> bool {
    let cut = known.len().min(NAME);
    known.as_bytes()[..cut] == *program.as_bytes()
}

/// Whether it is NVIDIA's MPS.
pub(super) fn is_mps(program: &str) -> bool {
    same(MPS, program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_for_the_system_and_users_by_their_number() {
        let policy = Policy {
            exempt_uids: vec![4000],
            ..Policy::default()
        };
        for (uid, program, exempt) in [
            (112, "nvidia-persiste", true),
            (0, "nv-hostengine", true),
            (0, "nv-host", false),
            (1000, "nv-hostengine", false),
            (4000, "python3", true),
            (0, "python3", false),
            (0, "", false),
        ] {
            assert_eq!(policy.exempts(uid, program), exempt, "{uid} {program}");
        }
        assert!(is_mps("nvidia-cuda-mps") && !is_mps("python3"));
    }
}
