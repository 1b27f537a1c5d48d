//! What each test on a real Slurm costs, for the table that `make test` ends with.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

/// A test that runs: when it ends, in whichever way, a line `name seconds` is added to the file that `$GPUOS_COSTS`
/// names. Without that variable nothing is written.
#[derive(Debug)]
pub struct Cost {
    test: &'static str,
    begun: Instant,
}

/// The test begins. `test` is its path in the program: `slurm::limits::native::power`.
pub fn of(test: &'static str) -> Cost {
    Cost {
        test,
        begun: Instant::now(),
    }
}

impl Drop for Cost {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os("GPUOS_COSTS") else {
            return;
        };
        let line = format!("{}\t{:.1}\n", self.test, self.begun.elapsed().as_secs_f64());
        // One write of one line to a file that is only added to: tests beside this one write there too.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        if let Err(e) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("GPUOS_COSTS={}: {e}", path.display());
        }
    }
}
