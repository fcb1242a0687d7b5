"""Arrays of other libraries: layouts of their axes, their conversion, and checks that data are plausible."""
