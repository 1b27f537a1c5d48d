//! gpuos_mover: see the library gpuos_moverd.

use std::process::ExitCode;

use gpuos_daemon::start;
use gpuos_moverd::options::Options;

fn main() -> ExitCode {
    let options: Options = match start::flags() {
        Ok(options) => options,
        Err(code) => return code,
    };
    gpuos_daemon::log::start("gpuos_mover", &options.node_name());
    let done = match options.unmount {
        true => gpuos_moverd::run::unmount(&options),
        false => gpuos_moverd::run::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::from(1)
        }
    }
}
