//! gpuosd: see the library of the same name.

use std::ffi::OsString;
use std::process::ExitCode;

use gpuos_daemon::start;
use gpuos_host::steps::device_groups::ask;
use gpuosd::options::Options;
use gpuosd::{clear, driver_checkpoint, in_group};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((flag, words)) = words.split_first()
        && flag == ask::FLAG
    {
        print!("{}", ask::answer(words));
        return ExitCode::SUCCESS;
    }
    if let Some((flag, words)) = words.split_first()
        && flag == clear::FLAG
    {
        return clear::run(words);
    }
    if let Some((flag, words)) = words.split_first()
        && flag == driver_checkpoint::FLAG
    {
        return driver_checkpoint::run(words);
    }
    if let Some((flag, words)) = words.split_first()
        && flag == in_group::FLAG
    {
        return in_group::run(words);
    }
    let options: Options = match start::flags() {
        Ok(options) => options,
        Err(code) => return code,
    };
    gpuos_daemon::log::start("gpuosd", &options.node_name());
    match gpuosd::run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::from(1)
        }
    }
}
