//! gpuosd: see the library of the same name.

use std::ffi::OsString;
use std::process::ExitCode;

use gpuos_daemon::start;
use gpuos_host::steps::device_groups::ask;
use gpuosd::clear;
use gpuosd::options::Options;

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
