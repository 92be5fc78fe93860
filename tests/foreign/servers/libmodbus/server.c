/* A Modbus device on libmodbus, controlled by lines: one command on standard input, one answer on standard output.
 *
 *     server tcp 0 1 2                 units 1 and 2 on 127.0.0.1, port found free
 *     server rtu /dev/pts/5 1 19200    unit 1 on a serial line (libmodbus answers for one unit there)
 *
 * The first line it prints is {"ready": {"port": <port>}}. A command is words with blanks between them, an answer
 * {"ok": ...} or {"error": <text>}. Ends with standard input. The commands:
 *
 *     set 1 holding 10 7 8 9: sets values of unit 1 from address 10 (as on the wire); tables are coil, discrete,
 *         holding, input
 *     count 1 holding 0 99: each of these registers counts its reads, starting at its current value
 *     fault 1 holding 50 50 exception 4 -1: reads of unit 1 (-1: any) in this table (or any) that touch addresses 50
 *         to 50 fail: kind of fault, its argument, how many times (-1: forever)
 *     connections_max 1 1: closes connections beyond this number; with 0 as second argument they stay open and are
 *         not read
 *     clear, cut, status: removes all faults; closes every connection; prints the numbers of requests and connections
 *     log 0: prints every read from this number on: time in ns, unit, table, address, count, good or the fault
 *
 * The faults, each with its argument and what it does to a read:
 *
 *     exception: its number; refused
 *     longer: registers; refused with exception 3 if it is longer
 *     late: ms; answered after this delay; only this connection waits
 *     pieces: ms; answered in two pieces, this far apart
 *     fewer: an answer with one value fewer than requested
 *     silent, half, twice, garbage, wrong_unit, wrong_function, wrong_transaction, close: as named
 *
 * Requests are received and answered by modbus_receive and modbus_reply. What a fault changes is the request before it
 * is answered (another unit, another function, fewer registers) or the bytes of the answer (half of them, two pieces).
 * A thread for each connection: a late answer on one delays no other. */

#include <arpa/inet.h>
#include <errno.h>
#include <modbus/modbus.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { UNITS = 256, ADDRESSES = 65536, FAULTS_MAX = 4096, CONNECTIONS_MAX = 64, LOG_MAX = 1 << 20, LINE_MAX_BYTES = 1 << 20 };

enum table { COIL, DISCRETE, HOLDING, INPUT, TABLES };
static const char *const TABLE_NAMES[TABLES] = {"coil", "discrete", "holding", "input"};
static const int FUNCTIONS[TABLES] = {1, 2, 3, 4};

enum kind { EXCEPTION, LONGER, SILENT, LATE, GARBAGE, WRONG_UNIT, WRONG_TRANSACTION, WRONG_FUNCTION, FEWER, HALF, PIECES,
            TWICE, CLOSE, KINDS };
static const char *const KIND_NAMES[KINDS] = {"exception", "longer", "silent", "late", "garbage", "wrong_unit",
                                              "wrong_transaction", "wrong_function", "fewer", "half", "pieces", "twice",
                                              "close"};

struct fault {
    int unit, table; /* -1: any */
    int first, last;
    enum kind kind;
    int argument;
    long times; /* -1: for ever */
};

struct entry {
    int64_t at_ns;
    int unit, table, address, count, outcome; /* -1: answered; otherwise the kind of fault */
};

static pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static modbus_mapping_t *units[UNITS];
static uint8_t *counting[UNITS][TABLES]; /* 1: the register holds how often it was read */
static struct fault faults[FAULTS_MAX];
static int fault_count;
static struct entry *entries;
static long entry_count, request_count, accepted_count;
static int connections[CONNECTIONS_MAX], connection_count, connections_max = CONNECTIONS_MAX, hangs_up = 1;

static void pause_ms(int ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int place_in(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* --- answers --------------------------------------------------------------------------------------------------------- */

static int table_of(int function) {
    for (int table = 0; table < TABLES; table++)
        if (FUNCTIONS[table] == function) return table;
    return -1;
}

/* The fault that a request meets, or NULL; one that is limited is used up by it. */
static struct fault *met_fault(int unit, int table, int address, int count) {
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (fault->times == 0 || (fault->unit >= 0 && fault->unit != unit)) continue;
        if (fault->table >= 0 && fault->table != table) continue;
        if (address > fault->last || address + count <= fault->first) continue;
        if (fault->kind == LONGER && count <= fault->argument) continue;
        if (fault->times > 0) fault->times--;
        return fault;
    }
    return NULL;
}

static void count_reads(int unit, int table, int address, int count) {
    uint8_t *counted = counting[unit][table];
    if (counted == NULL) return;
    uint16_t *words = table == HOLDING ? units[unit]->tab_registers : units[unit]->tab_input_registers;
    for (int i = address; i < address + count && i < ADDRESSES; i++)
        if (counted[i]) words[i]++;
}

/* The bytes that modbus_reply sends, taken instead of sent. */
static int taken_answer(modbus_t *ctx, const uint8_t *query, int length, modbus_mapping_t *mapping, uint8_t *bytes, int max) {
    int pair[2], line = modbus_get_socket(ctx);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) return -1;
    modbus_set_socket(ctx, pair[0]);
    modbus_reply(ctx, query, length, mapping);
    modbus_set_socket(ctx, line);
    int count = (int)read(pair[1], bytes, (size_t)max);
    close(pair[0]);
    close(pair[1]);
    return count;
}

static void put(int line, const uint8_t *bytes, int count) {
    if (count > 0 && write(line, bytes, (size_t)count) < 0) perror("write");
}

/* Answers with a fault. False if the connection is to be closed. */
static int answer_wrongly(modbus_t *ctx, uint8_t *query, int length, modbus_mapping_t *mapping, struct fault fault) {
    static const uint8_t garbage[16] = {0xA5, 0x5A, 0xA5, 0x5A, 0xFF, 0x00, 0xA5, 0x5A, 0xA5, 0x5A, 0xFF, 0x00, 1, 2, 3, 4};
    const int header = modbus_get_header_length(ctx), line = modbus_get_socket(ctx);
    uint8_t bytes[2 * MODBUS_MAX_ADU_LENGTH];
    int count, function = query[header];
    switch (fault.kind) {
    case EXCEPTION: modbus_reply_exception(ctx, query, (unsigned)fault.argument); return 1;
    case LONGER: modbus_reply_exception(ctx, query, MODBUS_EXCEPTION_ILLEGAL_DATA_VALUE); return 1;
    case SILENT: return 1;
    case LATE: pause_ms(fault.argument); break;
    case GARBAGE: put(line, garbage, sizeof garbage); return 1;
    case WRONG_UNIT: query[header - 1] = (uint8_t)(query[header - 1] + 1); break;
    case WRONG_TRANSACTION: query[0] ^= 0x55; break; /* TCP only */
    case WRONG_FUNCTION: query[header] = (uint8_t)(function == 3 ? 4 : function == 4 ? 3 : function == 1 ? 2 : 1); break;
    case FEWER: query[header + 4] = (uint8_t)(query[header + 4] > 1 ? query[header + 4] - 1 : 2); break;
    case HALF:
        count = taken_answer(ctx, query, length, mapping, bytes, sizeof bytes);
        put(line, bytes, count / 2);
        return 1;
    case PIECES:
        count = taken_answer(ctx, query, length, mapping, bytes, sizeof bytes);
        put(line, bytes, count / 2);
        pause_ms(fault.argument);
        put(line, bytes + count / 2, count - count / 2);
        return 1;
    case TWICE: modbus_reply(ctx, query, length, mapping); break;
    case CLOSE: return 0;
    default: break;
    }
    modbus_reply(ctx, query, length, mapping);
    return 1;
}

/* Whether a fault spoils an answer that the unit itself must give first. */
static int needs_unit(enum kind kind) {
    return kind != EXCEPTION && kind != LONGER && kind != SILENT && kind != GARBAGE && kind != CLOSE;
}

/* One request. False if the connection is to be closed. */
static int serve(modbus_t *ctx, uint8_t *query, int length) {
    const int header = modbus_get_header_length(ctx);
    const int unit = query[header - 1], table = table_of(query[header]);
    const int address = query[header + 1] << 8 | query[header + 2], count = query[header + 3] << 8 | query[header + 4];
    struct fault fault = {.kind = KINDS};
    pthread_mutex_lock(&world);
    request_count++;
    struct fault *met = table < 0 ? NULL : met_fault(unit, table, address, count);
    if (met != NULL)
        fault = *met;
    if (units[unit] == NULL && (met == NULL || needs_unit(fault.kind)))
        fault.kind = SILENT; /* a unit that does not exist, as behind a serial line */
    if (entry_count < LOG_MAX)
        entries[entry_count++] =
            (struct entry){now_ns(), unit, table, address, count, fault.kind == KINDS ? -1 : (int)fault.kind};
    int goes_on = 1;
    if (fault.kind == KINDS) {
        if (table == HOLDING || table == INPUT) count_reads(unit, table, address, count);
        modbus_reply(ctx, query, length, units[unit]);
    }
    pthread_mutex_unlock(&world);
    if (fault.kind != KINDS) goes_on = answer_wrongly(ctx, query, length, units[unit], fault);
    return goes_on;
}

/* --- connections ----------------------------------------------------------------------------------------------------- */

static void *connection(void *socket_number) {
    const int line = (int)(intptr_t)socket_number;
    modbus_t *ctx = modbus_new_tcp("127.0.0.1", 0);
    uint8_t query[MODBUS_TCP_MAX_ADU_LENGTH];
    modbus_set_socket(ctx, line);
    for (;;) {
        int length = modbus_receive(ctx, query);
        if (length < 0) break;
        if (length > 0 && !serve(ctx, query, length)) break;
    }
    pthread_mutex_lock(&world);
    for (int i = 0; i < connection_count; i++)
        if (connections[i] == line) connections[i--] = connections[--connection_count];
    pthread_mutex_unlock(&world);
    close(line);
    modbus_free(ctx);
    return NULL;
}

static void *accepting(void *socket_number) {
    const int listening = (int)(intptr_t)socket_number;
    for (;;) {
        int on = 1, line = accept(listening, NULL, NULL);
        if (line < 0) continue;
        setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pthread_mutex_lock(&world);
        int is_taken = connection_count < connections_max;
        accepted_count += is_taken;
        if (is_taken) connections[connection_count++] = line;
        pthread_mutex_unlock(&world);
        pthread_t thread;
        if (is_taken && pthread_create(&thread, NULL, connection, (void *)(intptr_t)line) == 0)
            pthread_detach(thread);
        else if (hangs_up) /* else the connection stands, and nothing is read from it */
            close(line);
    }
    return NULL;
}

static void *serial(void *context) {
    modbus_t *ctx = context;
    uint8_t query[MODBUS_RTU_MAX_ADU_LENGTH];
    for (;;) {
        int length = modbus_receive(ctx, query);
        if (length > 0)
            serve(ctx, query, length);
        else if (length < 0 && errno != EMBBADCRC && errno != ETIMEDOUT)
            pause_ms(20); /* nobody at the other end of the line */
    }
    return NULL;
}

/* --- commands -------------------------------------------------------------------------------------------------------- */

static const char *set(int unit, int table, int address, char *words) {
    if (unit < 0 || unit >= UNITS || units[unit] == NULL) return "no such unit";
    if (table < 0) return "no such table";
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "), address++) {
        long value = strtol(word, NULL, 0);
        if (address < 0 || address >= ADDRESSES) return "no such address";
        if (table == COIL || table == DISCRETE)
            (table == COIL ? units[unit]->tab_bits : units[unit]->tab_input_bits)[address] = (uint8_t)(value != 0);
        else
            (table == HOLDING ? units[unit]->tab_registers : units[unit]->tab_input_registers)[address] = (uint16_t)value;
    }
    return NULL;
}

static const char *count(int unit, int table, int first, int last) {
    if (unit < 0 || unit >= UNITS || units[unit] == NULL) return "no such unit";
    if (table != HOLDING && table != INPUT) return "only registers count";
    if (counting[unit][table] == NULL) counting[unit][table] = calloc(ADDRESSES, 1);
    for (int i = first; i <= last && i < ADDRESSES; i++) counting[unit][table][i] = 1;
    return NULL;
}

static const char *add_fault(char *words) {
    struct fault fault = {.times = -1};
    char table[16], kind[24];
    if (sscanf(words, "%d %15s %d %d %23s %d %ld", &fault.unit, table, &fault.first, &fault.last, kind, &fault.argument,
               &fault.times) < 7)
        return "fault takes unit, table, first, last, kind, argument, times";
    fault.table = place_in(TABLE_NAMES, TABLES, table);
    int found = place_in(KIND_NAMES, KINDS, kind);
    if (fault.table < 0 && strcmp(table, "any") != 0) return "no such table";
    if (found < 0) return "no such kind";
    if (fault_count == FAULTS_MAX) return "too many faults";
    fault.kind = (enum kind)found;
    faults[fault_count++] = fault;
    return NULL;
}

static void tell_log(long since) {
    printf("{\"ok\": [");
    for (long i = since; i < entry_count; i++)
        printf("%s[%lld, %d, \"%s\", %d, %d, \"%s\"]", i == since ? "" : ", ", (long long)entries[i].at_ns, entries[i].unit,
               entries[i].table < 0 ? "other" : TABLE_NAMES[entries[i].table], entries[i].address, entries[i].count,
               entries[i].outcome < 0 ? "good" : KIND_NAMES[entries[i].outcome]);
    printf("]}\n");
}

static void obey(char *line) {
    char table[16];
    int unit, first, last, used = 0;
    const char *wrong = NULL;
    if (sscanf(line, "set %d %15s %d %n", &unit, table, &first, &used) >= 3) {
        wrong = set(unit, place_in(TABLE_NAMES, TABLES, table), first, line + used);
    } else if (sscanf(line, "count %d %15s %d %d", &unit, table, &first, &last) == 4) {
        wrong = count(unit, place_in(TABLE_NAMES, TABLES, table), first, last);
    } else if (strncmp(line, "fault ", 6) == 0) {
        wrong = add_fault(line + 6);
    } else if (strcmp(line, "clear") == 0) {
        fault_count = 0;
    } else if (sscanf(line, "connections_max %d %d", &first, &hangs_up) == 2) {
        connections_max = first < CONNECTIONS_MAX ? first : CONNECTIONS_MAX;
    } else if (strcmp(line, "cut") == 0) {
        for (int i = 0; i < connection_count; i++) shutdown(connections[i], SHUT_RDWR);
    } else if (sscanf(line, "log %d", &first) == 1) {
        tell_log(first);
        return;
    } else if (strcmp(line, "status") == 0) {
        printf("{\"ok\": {\"requests\": %ld, \"accepted\": %ld, \"connections\": %d}}\n", request_count, accepted_count,
               connection_count);
        return;
    } else {
        wrong = "no such command, or it has other words";
    }
    if (wrong != NULL)
        printf("{\"error\": \"%s\"}\n", wrong);
    else
        printf("{\"ok\": null}\n");
}

/* --- start ----------------------------------------------------------------------------------------------------------- */

static void add_unit(int unit) {
    if (unit >= 0 && unit < UNITS) units[unit] = modbus_mapping_new(ADDRESSES, ADDRESSES, ADDRESSES, ADDRESSES);
}

static int listening_socket(int port) {
    int on = 1, found = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(found, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(found, (struct sockaddr *)&address, sizeof address) < 0 || listen(found, 16) < 0) {
        perror("listen");
        exit(1);
    }
    return found;
}

static modbus_t *serial_line(const char *device, int unit, int baud_rate) {
    modbus_t *ctx = modbus_new_rtu(device, baud_rate, 'N', 8, 1);
    if (ctx == NULL || modbus_set_slave(ctx, unit) < 0 || modbus_connect(ctx) < 0) {
        fprintf(stderr, "%s: %s\n", device, modbus_strerror(errno));
        exit(1);
    }
    add_unit(unit);
    return ctx;
}

int main(int argc, char **argv) {
    pthread_t thread;
    static char line[LINE_MAX_BYTES];
    signal(SIGPIPE, SIG_IGN);
    entries = malloc(sizeof(struct entry) * LOG_MAX); /* untouched pages cost nothing */
    if (argc >= 3 && strcmp(argv[1], "tcp") == 0) {
        for (int i = 3; i < argc; i++) add_unit(atoi(argv[i]));
        int listening = listening_socket(atoi(argv[2]));
        struct sockaddr_in address;
        socklen_t length = sizeof address;
        getsockname(listening, (struct sockaddr *)&address, &length);
        pthread_create(&thread, NULL, accepting, (void *)(intptr_t)listening);
        printf("{\"ready\": {\"port\": %d}}\n", ntohs(address.sin_port));
    } else if (argc == 5 && strcmp(argv[1], "rtu") == 0) {
        pthread_create(&thread, NULL, serial, serial_line(argv[2], atoi(argv[3]), atoi(argv[4])));
        printf("{\"ready\": {\"port\": 0}}\n");
    } else {
        fprintf(stderr, "usage: server tcp PORT UNIT... | rtu DEVICE UNIT BAUD\n");
        return 2;
    }
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        pthread_mutex_lock(&world);
        obey(line);
        pthread_mutex_unlock(&world);
        fflush(stdout);
    }
    return 0;
}
