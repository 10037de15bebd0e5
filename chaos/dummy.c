/* The child of `queenright bench peers`: listens on a port of 127.0.0.1, answers every request with 200, and notes in
   a file what befalls it, one line each, with CLOCK_MONOTONIC nanoseconds:

       PORT PID NS WHAT      start, listen, taken (the port is), term, grandchild (PID is its own)

   dummy --port N [--events FILE] [--ignore-term] [--grandchild]. dummy.py does the same where there is no compiler. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int port, events = -1, ignores;

static void note(const char *what)
{
    char line[96];
    struct timespec now;
    if (events < 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "%d %d %lld %s\n", port, (int)getpid(),
                          (long long)now.tv_sec * 1000000000LL + now.tv_nsec, what);
    if (write(events, line, length) != length)
        _exit(4);
}

static void on_term(int number)
{
    (void)number;
    note("term");
    if (!ignores)
        _exit(0);
}

int main(int argc, char **argv)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    int grandchild = 0, one = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--ignore-term"))
            ignores = 1;
        else if (!strcmp(argv[i], "--grandchild"))
            grandchild = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--port"))
            port = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--events"))
            events = open(argv[++i], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        else
            return 2;
    }
    note("start");
    signal(SIGTERM, on_term);
    signal(SIGINT, on_term); /* pm2 stops with it */
    signal(SIGPIPE, SIG_IGN);
    if (grandchild && fork() == 0) {
        note("grandchild");
        for (;;)
            pause();
    }
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&where, sizeof where) || listen(listener, 64)) {
        note("taken");
        return 3;
    }
    note("listen");
    for (;;) {
        char question[4096];
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            continue;
        if (read(client, question, sizeof question) > 0 && write(client, answer, sizeof answer - 1) < 0)
            perror("write");
        close(client);
    }
}
