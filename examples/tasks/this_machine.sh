# What this machine is, what slows it, and how fast it is: measured rates make plans and choices yours.
flashgp doctor
flashgp bench --help
flashgp profile --help
# flashgp tune   takes a minute or two, on an idle machine
