//! The commands on MySQL, where `scripts/deps --test` could have one. What is the same as on
//! MariaDB is tested there; here is what MySQL does in its own way.

mod advise;
mod connect;
mod govern;
mod watch;

use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Options, Server};

/// A private MySQL. `None` where there is none, which is said.
fn mysql(name: &str, args: &[&str]) -> Option<Server> {
    if Environment::get().mysqld().is_none() {
        tidepool_skip::skip("scripts/deps --test found no MySQL");
        return None;
    }
    let options = Options::new(name).mysql();
    Some(Server::start(args.iter().fold(options, |options, arg| options.arg(*arg))))
}
