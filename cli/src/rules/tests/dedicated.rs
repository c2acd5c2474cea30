//! `innodb_dedicated_server`: all advice about it and about the pool's size can be followed
//! together, and the alternative is named as one.

use super::*;

/// All lines for the option file, sorted, each once.
fn lines(facts: &Facts) -> Vec<String> {
    let mut lines: Vec<String> = evaluate(facts).into_iter().flat_map(|f| f.config).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn a_dedicated_server_in_a_container_it_does_not_see() {
    let mut facts = healthy();
    facts.kind = Kind::from_words("8.0.31", "MySQL Community Server").unwrap();
    facts.settings.dedicated_server = Some(true);
    pool(&mut facts).size_bytes = 12 * GIB;
    pool(&mut facts).free_bytes = 8 * GIB;
    machine(&mut facts).limit_bytes = 6 * GIB;
    machine(&mut facts).room_bytes = GIB;
    let findings = evaluate(&facts);
    let rules: Vec<_> = findings.iter().map(|f| f.rule).collect();
    assert_eq!(rules, ["pool_too_large", "dedicated_server_on"]);
    assert_eq!(findings[1].alternative, "");
    let fixed = lines(&facts);
    assert_eq!(fixed.len(), 2, "{fixed:?}");
    assert!(fixed[0].starts_with("innodb_buffer_pool_size = "), "{fixed:?}");
    assert_eq!(fixed[1], "innodb_dedicated_server = OFF");
    // Newer servers can see it with an option, but not beside a size in the configuration.
    facts.kind = Kind::from_words("9.7.4", "MySQL Community Server").unwrap();
    facts.settings.container_aware = Some(false);
    assert_eq!(lines(&facts), fixed);
    let other = evaluate(&facts).remove(1).alternative;
    assert!(other.starts_with("with container_aware = ON, and innodb_dedicated"), "{other}");
    assert!(other.contains("takes 4.5 GiB for the pool"), "{other}");
    assert!(other.contains("takes the place of innodb_buffer_pool_size"), "{other}");
    // Three quarters of what it would see are more than fits.
    machine(&mut facts).room_bytes = 500 * MIB;
    assert_eq!(evaluate(&facts)[1].alternative, "");
    facts.settings.container_aware = Some(true);
    assert_eq!(only(&facts).rule, "pool_too_large");
}

/// As MySQL is installed, on a dedicated machine.
fn fresh(version: &str) -> Facts {
    let mut facts = healthy();
    facts.kind = Kind::from_words(version, "MySQL Community Server").unwrap();
    facts.settings.dedicated_server = Some(false);
    facts.data = Data::default();
    pool(&mut facts).size_bytes = 128 * MIB;
    pool(&mut facts).free_bytes = 100 * MIB;
    machine(&mut facts).room_bytes = 15 * GIB;
    facts
}

#[test]
fn on_a_machine_of_its_own_a_size_is_advised_and_the_option_told_as_the_other_way() {
    let mut facts = fresh("8.4.2");
    let finding = only(&facts);
    assert_eq!(finding.rule, "pool_default");
    assert!(finding.set[0].starts_with("SET GLOBAL innodb_buffer_pool_size = "));
    assert!(lines(&facts)[0].starts_with("innodb_buffer_pool_size = "), "{:?}", lines(&facts));
    assert_eq!(lines(&facts).len(), 1);
    let other = finding.alternative;
    for words in [
        "with innodb_dedicated_server = ON the server sizes the pool itself at each start: 12 GiB here",
        "takes the place of innodb_buffer_pool_size in the option file, and takes a restart",
        "outranks the option, which then does nothing for the pool",
        "It sets innodb_redo_log_capacity too, from the memory and the processors, each only",
    ] {
        assert!(other.contains(words), "{words} in {other}");
    }
    let before = only(&fresh("8.0.41")).alternative;
    assert!(
        before.contains("innodb_redo_log_capacity and innodb_flush_method too, from the memory, ")
    );
    let before = only(&fresh("8.0.29")).alternative;
    assert!(before.contains("innodb_log_file_size and innodb_flush_method too, "), "{before}");
    // The same beside the other finding that asks for more.
    facts.data = Data { innodb_data_bytes: 20 * GIB, ..Data::default() };
    pool(&mut facts).free_bytes = 0;
    pool(&mut facts).reads_per_s = 4000.0;
    let finding = only(&facts);
    assert_eq!((finding.rule, finding.alternative), ("pool_too_small", other));
}

#[test]
fn the_option_is_no_way_where_it_would_take_more_than_fits_or_is_not_there() {
    let none: [fn(&mut Facts); 6] = [
        // A size in the configuration outranks it.
        |facts| facts.settings.pool_size_is_set = Some(true),
        |facts| machine(facts).others_bytes = 5 * GIB,
        |facts| machine(facts).limit_bytes = 8 * GIB,
        // The connections of the busiest time leave less than three quarters.
        |facts| facts.connections.busy_bytes = 128 * MIB,
        |facts| facts.settings.dedicated_server = None,
        |facts| facts.settings.dedicated_server = Some(true),
    ];
    for (at, change) in none.iter().enumerate() {
        let mut facts = fresh("8.4.2");
        change(&mut facts);
        for finding in evaluate(&facts) {
            assert_eq!(finding.alternative, "", "{at}");
        }
    }
}
