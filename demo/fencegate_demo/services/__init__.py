"""Services that check fencing tokens in their own transactions, one for each framework: files to copy from.

Each keeps accounts in a database of its own and takes `PUT /accounts/7` under the lock `acct:7`. `DATABASE_URL` names
the database (the file is `DATABASE_FILE` with Django); how to start one is in its first line.
"""
