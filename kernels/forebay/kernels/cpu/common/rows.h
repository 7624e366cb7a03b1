// Unrolls a line of code over rows with named variables: gcc 12 spills arrays of vectors, but not these.
// ROWS_3(X) is X(0) X(1) X(2).
#ifndef FOREBAY_ROWS_H
#define FOREBAY_ROWS_H

#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)

#endif
