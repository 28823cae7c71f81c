/* What src/run asks of a graph. */
#ifndef TTC_GRAPH_GRAPH_H
#define TTC_GRAPH_GRAPH_H

#include <stddef.h>
#include <stdint.h>

/* For messages: " (a program of a.py:3 to b.py:7)", empty where op is no graph or its nodes have no lines. */
void ttc__graph_place(uint32_t op, char *out, size_t nbyte);

#endif
