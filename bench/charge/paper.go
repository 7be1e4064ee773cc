package main

import "time"

// The paper's tables, as far as its text has them: 7 and 8 are only described in it,
// and of 9 there are ranges. Its commands are in the order of ours.

// paperLogger is table 2: what the loggers' group takes, in %, without charging.
var paperLogger = map[time.Duration]map[string]float64{
	50 * time.Millisecond: {"yes": 99.36, "cat": 70.45, "echo": 77.78},
	33 * time.Millisecond: {"yes": 96.08, "cat": 62.21, "echo": 64.54},
	25 * time.Millisecond: {"yes": 95.81, "cat": 47.57, "echo": 51.04},
	20 * time.Millisecond: {"yes": 96.04, "cat": 38.43, "echo": 40.79},
}

// paperEvents is table 3: events per second without charging, by the number of
// containers.
var paperEvents = map[int]map[string]float64{
	1: {"dd": 328.35},
	2: {"dd": 161.80, "yes": 81.46, "cat": 125.74, "echo": 125.76},
	3: {"dd": 107.71, "yes": 54.47, "cat": 76.67, "echo": 78.27},
	4: {"dd": 80.82, "yes": 40.54, "cat": 56.22, "echo": 56.20},
	5: {"dd": 64.63, "yes": 32.38, "cat": 43.11, "echo": 44.56},
}

// paperRatios is table 4: the same to dd.
var paperRatios = map[int]map[string]float64{
	2: {"yes": 0.50, "cat": 0.78, "echo": 0.78},
	3: {"yes": 0.51, "cat": 0.71, "echo": 0.73},
	4: {"yes": 0.50, "cat": 0.68, "echo": 0.70},
	5: {"yes": 0.50, "cat": 0.67, "echo": 0.69},
}

// paperCharged is what is said of table 9, the same with charging: from N=2 to N=5.
var paperCharged = map[string][2]float64{
	"yes": {0.95, 0.70}, "cat": {0.93, 0.78}, "echo": {0.92, 0.82},
}

// paperAccuracy are tables 5 and 6: in %, what the logger takes, what of it is charged,
// and what the container takes.
var paperAccuracy = map[string]map[time.Duration][3]float64{
	"yes": {
		50 * time.Millisecond: {52.57, 46.62, 4.61},
		33 * time.Millisecond: {36.94, 32.51, 2.11},
		25 * time.Millisecond: {28.55, 24.96, 1.60},
		20 * time.Millisecond: {23.14, 19.97, 1.56},
	},
	"cat": {
		50 * time.Millisecond: {17.38, 12.54, 37.44},
		33 * time.Millisecond: {11.62, 7.71, 24.46},
		25 * time.Millisecond: {8.85, 5.93, 19.21},
		20 * time.Millisecond: {7.52, 4.71, 15.22},
	},
}
