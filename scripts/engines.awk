# Prints the tests of a package that start a container engine, directly or by other functions of
# the package. The files are formatted by gofmt: a function begins with "func" and ends
# with a brace, at the start of a line.
/^func / {
	name = $0
	sub(/^func (\([^)]*\) )?/, "", name)
	sub(/[^A-Za-z0-9_].*/, "", name)
}
name != "" { body[name] = body[name] "\n" $0 }
/^}/ { name = "" }
END {
	for (f in body) {
		sub(/^\n[^\n]*\n/, "", body[f]) # the line with the function's own name
		starts[f] = body[f] ~ /engines\.New(Rig|Machine)?\(|[^A-Za-z0-9_.]New(Rig|Machine)\(/
	}
	do {
		more = 0
		for (f in body)
			if (!starts[f])
				for (g in starts)
					if (starts[g] && body[f] ~ "(^|[^A-Za-z0-9_])" g "\\(") { starts[f] = more = 1; break }
	} while (more)
	for (f in body)
		if (starts[f] && f ~ /^Test[A-Z]/)
			print f
}
