package main

const collector = "collect"

func collect([]string) int { return 0 }
