/* The protocol of Fencegate for one lock key and the resource that it guards, small enough to look at every order of
 * its steps. README.md tells what is modelled, what each property means, and what each switch breaks.
 *
 * Pauses need no modelling: any process may stand still between any two steps for as long as the others like. A lease
 * may run out at any moment, so there are no leases here: whoever asks for the lock may find that the last holder's
 * time is over. Every promise below rests on tokens alone.
 */

#ifndef ROUNDS
#define ROUNDS 1          /* how often each client takes the lock */
#endif
#ifndef CHANGES
#define CHANGES 2         /* writes and deletes in one hold, at most */
#endif
#ifndef FAULTS
#define FAULTS 2          /* lost messages and answers, crashes, failovers and cleanups, all together */
#endif
#ifndef TICKS
#define TICKS 1           /* how often the clock moves by itself; a failover moves it too */
#endif

#define CLIENTS 2
#define GATEWAYS 2
#define ABSENT 0
#define NOT_AFTER 1       /* for how many ticks after its decision a commit may land */
#define COMMITS 7         /* ids for each client; asserted to be enough */

#define BIT(number) (1 << (number))
#define MAX(one, other) ((one) > (other) -> (one) : (other))
#define a_fault faults < FAULTS -> faults++

mtype = { NOTHING, READ, WRITE, DELETE, DONE, REFUSED, UNKNOWN };

/* --- what there is ------------------------------------------------------------------------------------------------- */

typedef Record {          /* of the lock key, in the lock store */
    byte version;         /* ABSENT when there is no record */
    byte last;            /* the highest token that was minted */
    short past            /* the ids of the commits that led here, as bits */
};
Record record;
byte floor;               /* of the record's shard: what cleaned up records leave behind */
Record before;            /* the record before the last commit, which a failover brings back */
byte clock = 1;

typedef Commit {
    bool under_way;
    byte id;
    byte version;         /* what the record is called after it */
    byte expected;
    byte expected_floor;
    byte token;
    byte decided          /* when */
};
Commit late[CLIENTS];     /* sent, not yet arrived, and given up by the sender: it may still land */

byte value;               /* of the resource: the number of the change that made it what it is, 0 at first */
byte mark;                /* of its fence, beside the value: the highest token seen */

chan to[GATEWAYS] = [0] of { mtype, byte, byte, byte, byte, byte };  /* verb, client, request, token, change, base */
byte waits_for[CLIENTS];  /* the request whose answer the client waits for; 0 when for none */
mtype answer[CLIENTS] = NOTHING;
byte read_value[CLIENTS];

byte faults, ticks;

#ifdef MARK_PER_GATEWAY
byte marks[GATEWAYS];
#define MARK marks[me]
#else
#define MARK mark
#endif
#ifdef CLAIM_NOT_DURABLE
byte durable_mark;
#endif

/* --- what was seen, and the properties ----------------------------------------------------------------------------- */

byte told_token;          /* the highest token that anyone was told */
short told_tokens;        /* all of them, as bits */
short told_no_lock;       /* the commits whose clients were told that they don't have the lock */
byte accepted_token;      /* the highest with which a change was made */
byte shown_token;         /* the highest that the resource was shown, by a read or by a change */
short made, refused;      /* changes that were made, and those whose clients were told "refused" */

#define I1_order            (token > told_before)
#define I1_unique           (!(told_tokens & BIT(token)))
#define I2_never_decreases  (token >= accepted_token)
#define I3_nothing_below    (token >= shown_token)
#define I3_only_the_stale   (token < shown_token)
#define I4_nothing_lost     (base == value)
#define I4_at_most_once     (!(made & BIT(change)))
#define I4_refused_stays    (!(refused & BIT(change)))
#define I4_done_is_there    (made & BIT(change))
#define I4_no_means_no(id)  (!(told_no_lock & BIT(id)))

/* --- the lock store: each of these is one step of it ---------------------------------------------------------------- */

#ifdef COMMIT_WITHOUT_COMPARE
#define unchanged(commit) (true)
#elif defined(FLOOR_NOT_COMPARED)
#define unchanged(commit) (record.version == commit.expected)
#else
#define unchanged(commit) (record.version == commit.expected && \
                           (record.version != ABSENT || floor == commit.expected_floor))
#endif

#ifdef COMMIT_AT_ANY_TIME
#define in_time(commit) (true)
#else
#define in_time(commit) (clock <= commit.decided + NOT_AFTER)
#endif

inline land(commit) {
    if
    :: unchanged(commit) && in_time(commit) ->
        assert(I4_no_means_no(commit.id));
        before.version = record.version; before.last = record.last; before.past = record.past;
        record.version = commit.version; record.last = commit.token;
        record.past = record.past | BIT(commit.id);
        landed = true
    :: else -> landed = false
    fi
}

inline forget(commit) {
    commit.under_way = false; commit.id = 0; commit.version = 0; commit.token = 0; commit.decided = 0;
    commit.expected = 0; commit.expected_floor = 0
}

inline clean_up() {
#ifndef CLEANUP_WITHOUT_FLOOR
    floor = MAX(floor, record.last);
#endif
    record.version = ABSENT; record.last = 0; record.past = 0
}

inline fail_over(to_version, to_last, to_past) {
#ifndef CLOCK_STANDS_STILL
    /* It takes longer than a commit may be late; and in real time, tokens don't run ahead of the clock. */
    clock = MAX(clock + NOT_AFTER, MAX(record.last, floor)) + 1;
#endif
    record.version = to_version; record.last = to_last; record.past = to_past
}

active proctype World() {
    bool landed;
end:
    do
    :: d_step { ticks < TICKS -> ticks++; clock++ }
    :: d_step { late[0].under_way -> land(late[0]); forget(late[0]) }
    :: d_step { late[1].under_way -> land(late[1]); forget(late[1]) }
    :: d_step { record.version != ABSENT && a_fault; clean_up() }
    :: d_step { record.version != ABSENT && a_fault; fail_over(before.version, before.last, before.past) }
    :: d_step { record.version != ABSENT && a_fault; floor = 0; fail_over(ABSENT, 0, 0) }
#ifdef CLAIM_NOT_DURABLE
    :: d_step { mark != durable_mark && a_fault; mark = durable_mark }  /* the resource is restarted */
#endif
    od
}

/* --- a gateway before the resource ---------------------------------------------------------------------------------- */

#ifdef OFF_BY_ONE
#define stale (token + 1 < MARK)
#elif defined(EQUAL_IS_REFUSED)
#define stale (token <= MARK)
#else
#define stale (token < MARK)
#endif

inline raise() {
    MARK = MAX(MARK, token);
    shown_token = MAX(shown_token, token)
}

inline change_value() {
    assert(I2_never_decreases);
    assert(I3_nothing_below);
    assert(I4_at_most_once);
    assert(I4_refused_stays);
    assert(I4_nothing_lost);
    accepted_token = token;
    raise();
    made = made | BIT(change);
    value = change;
#ifdef CLAIM_NOT_DURABLE
    durable_mark = mark;
#endif
#ifdef HARD_DELETE
    if
    :: verb == DELETE -> MARK = 0
    :: else
    fi;
#endif
    result = DONE
}

inline refuse() {
    assert(I3_only_the_stale);
    result = REFUSED
}

/* What the resource does in one step. */
inline perform() {
    if
#ifdef NO_CLAIM_ON_READ
    :: verb == READ -> shown_token = MAX(shown_token, token); shown = value; result = DONE
#else
    :: verb == READ && stale -> refuse()
    :: verb == READ && !stale -> raise(); shown = value; result = DONE
#endif
    :: verb != READ && stale -> refuse()
    :: verb != READ && !stale -> change_value()
    fi
}

inline tell() {
    if
    :: waits_for[client] == request ->
        if
        :: verb != READ && result == DONE -> assert(I4_done_is_there)
        :: verb != READ && result == REFUSED -> assert(I4_at_most_once); refused = refused | BIT(change)
        :: else
        fi;
        read_value[client] = shown;
        answer[client] = result
    :: else
    fi;
    result = NOTHING; verb = NOTHING; client = 0; request = 0; token = 0; change = 0; base = 0; shown = 0
}

proctype Gateway(byte me) {
    mtype verb = NOTHING, result = NOTHING;
    byte client, request, token, change, base, shown;
end:
    do
    :: to[me]?verb, client, request, token, change, base ->
        if
#ifdef CHECK_THEN_WRITE
        :: d_step { verb == READ || stale -> perform(); tell() }
        :: verb != READ && !stale;
            d_step { change_value(); tell() }
#else
        :: d_step { perform(); tell() }
#endif
        :: d_step { a_fault; perform();                     /* the answer is lost */
#ifdef LOST_ANSWER_TOLD_AS_REFUSED
            result = REFUSED;
#else
            result = UNKNOWN;
#endif
#ifndef SENT_AGAIN
            tell() }
#else
            };
            d_step { perform(); tell() }
#endif
        :: d_step { a_fault; result = UNKNOWN;              /* it crashed with the request in its hands, and is back */
#ifdef MARK_IN_MEMORY
            mark = 0;
#endif
            tell() }
        fi
    od
}

/* --- a client, with the replica of the lock service that serves it --------------------------------------------------- */

inline decide() {
    commit.expected = record.version;
    commit.expected_floor = floor;
    commit.token = (record.version == ABSENT -> floor : record.last) + 1;
#ifndef TOKEN_WITHOUT_CLOCK
    commit.token = MAX(commit.token, clock);
#endif
    commit.decided = clock;
    assert(ids < COMMITS);
    commit.id = me * COMMITS + ids;
    ids++;
#ifdef VERSION_REPEATS
    commit.version = record.version + 1
#else
    commit.version = commit.id + 1
#endif
}

/* No answer to a commit: look at what is there now. */
inline resolve() {
#ifdef UNKNOWN_TAKEN_FOR_DONE
    fate = DONE
#elif defined(UNKNOWN_TAKEN_FOR_NOT_DONE)
    fate = REFUSED
#else
    if
    :: record.past & BIT(commit.id) -> fate = DONE
    :: else ->
        if
        :: unchanged(commit) ->                             /* it can still land: so have it land, or be too late */
            land(commit);
            fate = (landed -> DONE : REFUSED)
        :: else ->                                          /* the chain from what we built on is there, without us */
            fate = ((commit.expected == ABSENT && floor == commit.expected_floor) ||
                    (commit.expected != ABSENT && (record.past & BIT(commit.expected - 1))) -> REFUSED : UNKNOWN)
        fi
    fi
#endif
}

inline await() {
    requests++;
    waits_for[me] = requests
}

inline told() {
    token = commit.token;
    if
    :: fate == DONE ->
        assert(I1_order);
        assert(I1_unique);
        told_token = MAX(told_token, token);
        told_tokens = told_tokens | BIT(token);
        await()
    :: fate == REFUSED -> told_no_lock = told_no_lock | BIT(commit.id)
    :: else
    fi;
    landed = false; told_before = 0;
    forget(commit)
}

inline acquire() {
    d_step { told_before = told_token; decide() };
    if
    :: d_step { land(commit); fate = (landed -> DONE : REFUSED); told() }
    :: d_step { a_fault; land(commit) };                    /* its answer is lost */
        d_step { resolve(); told() }
    :: d_step { !late[me].under_way && a_fault;             /* it is late, or lost */
        late[me].id = commit.id; late[me].version = commit.version; late[me].token = commit.token;
        late[me].expected = commit.expected; late[me].expected_floor = commit.expected_floor;
        late[me].decided = commit.decided; late[me].under_way = true };
        d_step { resolve(); told() }
    fi
}

/* Ask one of the gateways, and wait for its answer, or no longer. */
inline ask(verb) {
    if
    :: to[0]!verb, me, requests, token, change, base
    :: to[1]!verb, me, requests, token, change, base
    fi;
    if
    :: d_step { answer[me] != NOTHING -> fate = answer[me]; heard(verb) }
    :: d_step { answer[me] == NOTHING && a_fault; fate = UNKNOWN; heard(verb) }
    fi
}

inline heard(verb) {
    base = (verb == READ -> read_value[me] : change);
    waits_for[me] = 0; answer[me] = NOTHING; read_value[me] = 0
}

proctype Client(byte me) {
    byte round, part, ids, requests, told_before, token, change, base;
    bool landed;
    mtype fate = NOTHING;
    Commit commit;

    do
    :: round < ROUNDS ->
        acquire();
        if
        :: fate == DONE -> ask(READ)
        :: else
        fi;
        do
        :: atomic { fate == DONE && part < CHANGES ->
#ifdef TOKEN_FROM_THE_COUNTER
            token = (record.version == ABSENT -> token : record.last);
#endif
            change = 1 + (me * ROUNDS + round) * CHANGES + part; part++;
            await() };
            if
            :: part == 1 -> ask(WRITE)
            :: part != 1 -> ask(DELETE)
            fi
        :: break                                            /* enough, or refused, or unknown: the hold is given up */
        od;
        atomic { round++; part = 0; token = 0; change = 0; base = 0; fate = NOTHING }
    :: else -> break
    od
}

init {
    atomic { run Gateway(0); run Gateway(1); run Client(0); run Client(1) }
}
